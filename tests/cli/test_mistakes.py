"""More than two hundred mistakes at the command line: each is one helpful line and exit code 2, never a traceback."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from commands import Command
from mecheval.store import Store
from store.examples import ID, write_run

MISTAKES = f"""
nonsense
demo --out page.pdf
demo --out no/such/folder/page.html
quickstart --report page.txt
quickstart --workers 0
quickstart --store s3://bucket/runs
train --task nope
train --mixer nope
train --mixer nope.py:Mine
train --mixer mamba+
train --preset huge
train --lr abc
train --lr -1
train --d-model 0
train --steps many
train --n-layers 1000000
train --seed x
train --set pairs
train --pairs
train --pairs 8 8
train --nope 3
train --config nowhere.yaml
train --track nowhere
train --dry-run --track nowhere
train --checkpoint-seconds nan
runs --store nowhere
runs --status finished
runs --latex --csv
query "drop table runs"
query "selct 1"
query "select nope from runs"
query "select 1" --limit 0
card nope
card {ID} --state first
export nope
verify nope
intervene nope
intervene {ID} --state first
intervene {ID} --sites some
intervene {ID} -n 0
intervene {ID} --save map.gif
intervene {ID} --edit shrink
intervene {ID} --corruption noise
intervene {ID} --mixer nope
explain {ID} --split nope
explain nope
draw study nope
draw study ar --save figure.gif
draw example {ID} --save figure.txt
draw mechanisms --task nope
report --out report.md
report --scale huge
study
study nope
study fig99
study ar --scale huge
study ar --seeds 0
study ar --gpus 1
study ar --engine slowly
study ar mixer=nope
study ar --lr fast
compare nope
compare ar --table nope
compare ar --latex --markdown
evaluate nope.py:Mine
evaluate nope
check nope.py
new mixer.txt
sample --task nope
list nope
calibrate --nope
trian
quickstart extra
quickstart --workers two
train --task ar atr
train --mixer 0*mamba
train --mixer broken.py:A
train --lr 1e400
train --d-model 64.5
train --d-model 63 --mixer attention --num-heads 2
train --steps 0
train --keys 2 --pairs 8
train --config broken.py
train --config .
train --set =3
train --set a.b.c=3
train --seed -1
train --mlp maybe
runs --store broken.py
runs extra
query ""
query "select * from nope"
query "select 1; select 2"
query "copy runs to 'x.csv'"
query "select * from read_csv('broken.py')"
card
card {ID} extra
verify --nope
intervene {ID} --role nope
intervene {ID} -n many
intervene {ID} --site nope
intervene {ID} --edit nope=1
intervene ../../etc
explore nope
explore {ID} --port 99999999
draw nope
draw inside nope
draw inside {ID} --save x.bmp
draw landscape nope
draw ladder
draw study ar --save no/such/folder/x.svg
report --store nowhere
report --title
study ar ar=1
study ar d_model=abc
study ar --workers 0
study ar --engine ray --partition x
study ar --nice 99
study all nope
compare ar --scale tiny
evaluate two.py
evaluate two.py:C
evaluate two.py:A --lr 0
evaluate two.py:A --seeds 0
evaluate two.py:A --scale huge
evaluate two.py:A --set nope=1
evaluate broken.py:A
evaluate raises.py:A
evaluate .
check two.py
check raises.py
new two.py
new no/such/folder/mine.py
sample ar -n 0
sample ar --split nope
sample ar --pairs x
list sites nope
list sites mamba --nope 2
list mixer
train --preset ""
train --mixer two.py
card ""
intervene ar-attention-33
intervene ar-attention-32 --edit noise=-1
intervene ar-attention-32 --edit zero --site state
intervene ar-attention-32 --save .
intervene ar-attention-32 --save mecheval-store/runs.svg/x.svg
intervene ar-attention-32 --edit zero --corruption value
intervene ar-attention-32 --edit zero --direction both
explain ar-attention-32 --state best
quickstart --store broken.py
sample atr --preset paper --depth 3
sample ar --seed minus
sample ar --keys 3.5
sample ar --set pairs=8=9
sample ar --pairs 100000
sample mqar --pairs 0
sample ar --tree
grammar --save no/such/folder/g.json
grammar --grammar nowhere.json
grammar --preset huge
grammar ar
train --task mqar --pairs 9999999
train --mixer attention --rank 4
train --mixer attention+nope
train --mixer 3*
train --canon XYZ
train --batch-size -4
train --lr nan
train --track wandb,tensorboard
train --config two.py
train --store two.py
train --device gpu
train --device cuda:99
train --dtype float8
train --interchange-every -1
train --positions sideways
train --seed 99999999999999999999999
train dry-run
runs --status Done
runs --json --csv
query "select * from runs" --csv --json
query "insert into runs values (1)"
query "select count(* from runs"
export ar-attention-32 --state best
intervene ar-attention-32 --mixer two.py:A
explain ar-attention-32 --mixer two.py:B
grammar --save g.txt
verify {ID} extra
clean --store nowhere
clean {ID}
intervene {ID} -n -3
intervene {ID} --direction sideways
intervene AR-ATTENTION-32
explore nowhere/folder --task words
study ar --only mixer=
study ar --only d_model=63
study ar --lr 1e-3,,3e-3
study ar --search 3 --lr 1e-3
study ar --minutes 5
study ar --address auto
study ar --log no/such/folder/log.txt
study ar --figures two.py
compare ar --seeds 0
compare ar --only mixer=mamba
compare quickstart
report --out .
report --results --store mecheval-store
new my mixer.py
new .py
check two.py:A extra
check two.py:
evaluate mamba
evaluate nowhere/folder --task words
evaluate two.py:A --task tracking
evaluate two.py:A --lr 1e-3,abc
calibrate --kinds nope
calibrate --documents 0
calibrate --noise -0.1
calibrate --csv table.txt
cost --mixers nope
cost --lengths 32,x
cost --csv no/such/folder/cost.csv
list sites mamba+nope
list mixers mambo
list tasks ar nope
draw mechanisms --save x.gif
results add nope
results refresh --to nowhere
--nope
help
""".strip().splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store and files of custom mixers that are wrong."""
    path = tmp_path_factory.mktemp("folder")
    (path / "broken.py").write_text("def f(:\n")
    (path / "raises.py").write_text("raise RuntimeError('no')\n")
    (path / "two.py").write_text("from torch import nn\nclass A(nn.Linear): ...\nclass B(nn.Linear): ...\n")
    write_run(Store(path / "mecheval-store").folder(ID), d_model=16, n_layers=2, lr=1e-3)
    return path


@pytest.fixture
def here(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MECHEVAL_MIXERS", "")


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_helpful_line(command: Command, here: None, words: str) -> None:
    code, out, err = command(*shlex.split(words))
    assert (code, out) == (2, ""), err
    assert err.startswith("mecheval: "), err
    assert err.count("\n") == 1, err
    assert len(err) > len("mecheval: unknown x.\n")
