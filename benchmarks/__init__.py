"""Speed against references and peers, as ratios measured in one run."""
