"""Linear systems side by side in lanes, so that every inner loop is a few vectors long: what `ridge` is compiled from.

A lane answers queries of one head of one document, one after the other, and all lanes go in step. Of a symmetric
matrix there is the lower triangle, as tiles of 4 x 4 entries, row by row. A tile has its entries in all lanes: entry
(i, j) of lane n is at (4 i + j) LANES + n. An inner loop takes a tile times a vector, 16 products of 20 numbers. All is
flat, and entries of a tile are at constant distances, because LLVM vectorises a loop only if it has few arrays to tell
apart. A loop learns only when it runs how many lanes there are: loops of a fixed length are unrolled, and then not
vectorised.

Legend: B batch, L length, H heads, D key size, K queries of a document, N lanes. Flat, in all lanes: R a quad, which is
four entries of a vector; E a tile; V a vector, as quads; T tiles of a triangle, or of a row of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mecheval.kernels import fast_kernel

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

LANES = 16
"""Most systems side by side. With more, loops are longer, but matrices of 32 x 32 leave the second cache earlier."""
QUAD, TILE = 4 * LANES, 16 * LANES
FORGOTTEN = 1e100
"""One over the weight of a key that is forgotten, or still to come: it then adds nothing, and is far from overflow."""


class Seats(NamedTuple):
    """Positions and numbers of the queries (B, K) in order of time, and of every lane (N):

    its document and head; the turn of its first query, which is the place of that in time; the number of its present
    query, and the position, which is the last token to be read for it; and the next token that it will read.
    """

    at: Ints
    which: Ints
    document: Ints
    head: Ints
    turn: Ints
    query: Ints
    last: Ints
    next: Ints


@fast_kernel
def lanes_sharing(sequences: int, queries: int) -> int:
    """Return how many lanes there are for each head of a document: several, if heads and documents are few."""
    return max(1, min(queries, LANES // sequences))


@fast_kernel
def empty_seats(at_BK: Ints, which_BK: Ints) -> Seats:
    """Return lanes that have no document yet."""
    none = np.zeros((6, LANES), np.int64)
    return Seats(at_BK, which_BK, none[0], none[1], none[2], none[3], none[4], none[5])


@fast_kernel
def sit(seats: Seats, heads: int, first: int, sharing: int, apart: int) -> int:
    """Give heads of documents to lanes, from the first on, and return how many lanes these are.

    Each head has `sharing` lanes, whose turns begin `apart`. Lanes fill vectors of four; those that are left over do
    what the last head's do, and come to the same.
    """
    all_heads = len(seats.at) * heads
    lanes = min(-(-(all_heads - first) * sharing // 4) * 4, LANES)
    for n in range(lanes):
        seats.document[n], seats.head[n] = divmod(min(first + n // sharing, all_heads - 1), heads)
        seats.turn[n], seats.next[n] = n % sharing * apart, 0
    return lanes


@fast_kernel
def ask(seats: Seats, turns: int, lanes: int) -> int:
    """Go to the query so many turns after the first of a lane, if the document has it; return the latest position."""
    latest = 0
    for n in range(lanes):
        b, turn = seats.document[n], min(seats.turn[n] + turns, seats.at.shape[1] - 1)
        seats.last[n], seats.query[n] = seats.at[b, turn], seats.which[b, turn]
        latest = max(latest, seats.last[n])
    return latest


@fast_kernel
def read_on(seats: Seats, lanes: int) -> None:
    """Let each lane read on from where the lane before it stops."""
    for n in range(lanes):
        before = min(seats.turn[n], seats.at.shape[1]) - 1
        seats.next[n] = seats.at[seats.document[n], before] + 1 if before >= 0 else 0


@fast_kernel
def unread(seats: Seats, lanes: int) -> int:
    """Return the largest number of tokens that a lane has to read before it answers."""
    most = 0
    for n in range(lanes):
        most = max(most, seats.last[n] + 1 - seats.next[n])
    return most


@fast_kernel
def gather(x_BKHD: Floats, place_N: Ints, seats: Seats, y_V: Doubles, lanes: int) -> None:
    """Copy a row of x to each lane, and zeros behind it: a lane's last document may have left NaN there."""
    for n in range(lanes):
        x_D = x_BKHD[seats.document[n], place_N[n], seats.head[n]]
        for d in range(len(x_D)):
            y_V[d * LANES + n] = x_D[d]
        for d in range(len(x_D), len(y_V) // LANES):
            y_V[d * LANES + n] = 0


@fast_kernel
def gather_by_head(x_HD: Floats, seats: Seats, y_V: Doubles, lanes: int) -> None:
    """Copy the row of x of its head to each lane."""
    for n in range(lanes):
        for d in range(x_HD.shape[1]):
            y_V[d * LANES + n] = x_HD[seats.head[n], d]


@fast_kernel
def scatter(y_V: Doubles, seats: Seats, x_BKHD: Floats, lanes: int) -> None:
    """Copy each lane to the row of x of its query."""
    for n in range(lanes):
        x_D = x_BKHD[seats.document[n], seats.query[n], seats.head[n]]
        for d in range(len(x_D)):
            x_D[d] = y_V[d * LANES + n]


@fast_kernel
def fill(x: Doubles, value: float) -> None:
    """Like `x[:] = value`, which takes longer to compile."""
    for i in range(len(x)):
        x[i] = value


@fast_kernel
def multiply(x: Doubles, factor: Doubles, y: Doubles) -> None:
    """Set y to the product."""
    for i in range(len(x)):
        y[i] = x[i] * factor[i]


@fast_kernel
def tiles(quads: int) -> int:
    """Return how many tiles a triangle with so many quads of rows has, which is also where its next row begins."""
    return quads * (quads + 1) // 2


@fast_kernel
def row(A_T: Doubles, p: int) -> Doubles:
    """Return tile row p of a triangle."""
    return A_T[tiles(p) * TILE : tiles(p + 1) * TILE]


@fast_kernel
def lay(G_T: Doubles, diagonal_V: Doubles, A_T: Doubles, quads: int, lanes: int) -> None:
    """Set A to G + diag(diagonal), of which so many quads of rows are wanted."""
    for e in range(tiles(quads) * TILE):
        A_T[e] = G_T[e]
    for p in range(quads):
        A_E = row(A_T, p)[p * TILE :]
        for i in range(4):
            for n in range(lanes):
                A_E[5 * i * LANES + n] += diagonal_V[p * QUAD + i * LANES + n]


@fast_kernel
def solve(A_T: Doubles, y_V: Doubles, quads: int, lanes: int) -> None:
    """Solve A x = y in place by Cholesky; A, positive definite, becomes its factor."""
    for p in range(quads):
        A_p, y_R = row(A_T, p), y_V[p * QUAD : p * QUAD + QUAD]
        for q in range(p):
            A_q, A_pq = row(A_T, q), A_p[q * TILE : q * TILE + TILE]
            subtract(A_pq, A_p[: q * TILE], A_q[: q * TILE], lanes)
            divide(A_pq, A_q[q * TILE :], lanes)
        before, A_pp = A_p[: p * TILE], A_p[p * TILE :]
        subtract(A_pp, before, before, lanes)
        subtract(y_R, y_V[: p * QUAD], before, lanes)
        factorise_tile(A_pp, lanes)
        divide(y_R, A_pp, lanes)
    for p in range(quads - 1, -1, -1):
        A_p, y_R = row(A_T, p), y_V[p * QUAD : p * QUAD + QUAD]
        divide_transposed(y_R, A_p[p * TILE :], lanes)
        subtract_transposed(y_V[: p * QUAD], y_R, A_p, lanes)


@fast_kernel
def subtract(y_V: Doubles, x_V: Doubles, A_T: Doubles, lanes: int) -> None:
    """y -= A x, where A is a row of tiles and x as many quads; or four of each, which are tiles as well."""
    rows = len(y_V) // QUAD
    for j in range(len(A_T) // TILE):
        A_E = A_T[j * TILE : j * TILE + TILE]
        for i in range(rows):
            y_R, x_R = y_V[i * QUAD : i * QUAD + QUAD], x_V[(j * rows + i) * QUAD : (j * rows + i) * QUAD + QUAD]
            for n in range(lanes):
                x0, x1, x2, x3 = x_R[n], x_R[n + LANES], x_R[n + 2 * LANES], x_R[n + 3 * LANES]
                for d in range(4):
                    e = d * QUAD + n
                    y_R[d * LANES + n] -= (
                        A_E[e] * x0 + A_E[e + LANES] * x1 + A_E[e + 2 * LANES] * x2 + A_E[e + 3 * LANES] * x3
                    )


@fast_kernel
def subtract_transposed(y_V: Doubles, x_R: Doubles, A_T: Doubles, lanes: int) -> None:
    """y -= A^T x, where A is a row of tiles and y as many quads."""
    for j in range(len(y_V) // QUAD):
        A_E, y_R = A_T[j * TILE : j * TILE + TILE], y_V[j * QUAD : j * QUAD + QUAD]
        for n in range(lanes):
            x0, x1, x2, x3 = x_R[n], x_R[n + LANES], x_R[n + 2 * LANES], x_R[n + 3 * LANES]
            for d in range(4):
                e = d * LANES + n
                y_R[e] -= A_E[e] * x0 + A_E[e + QUAD] * x1 + A_E[e + 2 * QUAD] * x2 + A_E[e + 3 * QUAD] * x3


@fast_kernel
def factorise_tile(A_E: Doubles, lanes: int) -> None:
    """Replace A by the lower triangle U with U U^T = A, whose diagonal is kept as reciprocals.

    As in what follows, loops over entries would make this shorter, but LLVM does not vectorise it then.
    """
    for n in range(lanes):
        r0 = 1 / np.sqrt(A_E[n])
        u10, u20, u30 = A_E[n + QUAD] * r0, A_E[n + 2 * QUAD] * r0, A_E[n + 3 * QUAD] * r0
        r1 = 1 / np.sqrt(A_E[n + 5 * LANES] - u10 * u10)
        u21, u31 = (A_E[n + 9 * LANES] - u20 * u10) * r1, (A_E[n + 13 * LANES] - u30 * u10) * r1
        r2 = 1 / np.sqrt(A_E[n + 10 * LANES] - u20 * u20 - u21 * u21)
        u32 = (A_E[n + 14 * LANES] - u30 * u20 - u31 * u21) * r2
        r3 = 1 / np.sqrt(A_E[n + 15 * LANES] - u30 * u30 - u31 * u31 - u32 * u32)
        A_E[n], A_E[n + 5 * LANES], A_E[n + 10 * LANES], A_E[n + 15 * LANES] = r0, r1, r2, r3
        A_E[n + QUAD], A_E[n + 2 * QUAD], A_E[n + 3 * QUAD] = u10, u20, u30
        A_E[n + 9 * LANES], A_E[n + 13 * LANES], A_E[n + 14 * LANES] = u21, u31, u32


@fast_kernel
def divide(y_V: Doubles, U_E: Doubles, lanes: int) -> None:
    """Solve U x = y in place for every quad of y."""
    for i in range(0, len(y_V), QUAD):
        y_R = y_V[i : i + QUAD]
        for n in range(lanes):
            x0 = y_R[n] * U_E[n]
            x1 = (y_R[n + LANES] - U_E[n + QUAD] * x0) * U_E[n + 5 * LANES]
            x2 = y_R[n + 2 * LANES] - U_E[n + 2 * QUAD] * x0 - U_E[n + 9 * LANES] * x1
            x2 *= U_E[n + 10 * LANES]
            x3 = y_R[n + 3 * LANES] - U_E[n + 3 * QUAD] * x0 - U_E[n + 13 * LANES] * x1 - U_E[n + 14 * LANES] * x2
            x3 *= U_E[n + 15 * LANES]
            y_R[n], y_R[n + LANES], y_R[n + 2 * LANES], y_R[n + 3 * LANES] = x0, x1, x2, x3


@fast_kernel
def divide_transposed(y_R: Doubles, U_E: Doubles, lanes: int) -> None:
    """Solve U^T x = y in place."""
    for n in range(lanes):
        x3 = y_R[n + 3 * LANES] * U_E[n + 15 * LANES]
        x2 = (y_R[n + 2 * LANES] - U_E[n + 14 * LANES] * x3) * U_E[n + 10 * LANES]
        x1 = (y_R[n + LANES] - U_E[n + 13 * LANES] * x3 - U_E[n + 9 * LANES] * x2) * U_E[n + 5 * LANES]
        x0 = y_R[n] - U_E[n + 3 * QUAD] * x3 - U_E[n + 2 * QUAD] * x2 - U_E[n + QUAD] * x1
        y_R[n], y_R[n + LANES], y_R[n + 2 * LANES], y_R[n + 3 * LANES] = x0 * U_E[n], x1, x2, x3


@fast_kernel
def write(G_E: Doubles, w_N: Doubles, beta_N: Doubles, a_R: Doubles, b_R: Doubles, lanes: int) -> None:
    """G <- w G + beta a b^T."""
    for i in range(4):
        G_R, a_N = G_E[i * QUAD :], a_R[i * LANES :]
        for n in range(lanes):
            w, a = w_N[n], beta_N[n] * a_N[n]
            for j in range(4):
                e = j * LANES + n
                G_R[e] = w * G_R[e] + a * b_R[e]


@fast_kernel
def fade(W_V: Doubles, w_BLH: Floats, beta_BLH: Floats, seats: Seats, lanes: int) -> None:
    """Read tokens up to the query of each lane into W, one over their weights: a key fades with every later token."""
    fade_N = np.zeros(LANES)
    for _ in range(unread(seats, lanes)):
        seen = 0
        for n in range(lanes):
            t, fade_N[n] = seats.next[n], 1.0
            if t <= seats.last[n]:
                fade_N[n] = 1 / np.float64(w_BLH[seats.document[n], t, seats.head[n]])
            seen = max(seen, t)
        for t in range(seen):
            W_N = W_V[t * LANES : t * LANES + LANES]
            for n in range(lanes):
                W_N[n] = min(W_N[n] * fade_N[n], FORGOTTEN)
        for n in range(lanes):
            t = seats.next[n]
            if t <= seats.last[n]:
                W_V[t * LANES + n] = min(1 / np.float64(beta_BLH[seats.document[n], t, seats.head[n]]), FORGOTTEN)
                seats.next[n] += 1
