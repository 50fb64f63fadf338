"""Engine speed fitted online from what is seen, and the load that still meets the SLO.

In a window of a few seconds a gateway sees, per replica, y = mean time between tokens, kv = mean KV tokens in use, and
u = prompt tokens prefilled per second. A step costs a fixed part, a part for reading the cache and a part for prefill,
and u * y prefill tokens fall into one step:

    y = a + c * kv + d * (u * y)           a, c, d >= 0

Decayed least squares over windows, with the three coefficients kept non-negative by trying every subset of them (there
are seven). A coefficient is believed when its standard error is small against it; until then the fit answers None.
When recent windows all lie to one side of the fit the engine has changed, and old windows are forgotten faster.

Solved for the objective with mean prompt p and mean output o, n sequences side by side start n / (o * y) requests a
second, each bringing p prefill tokens, so

    y(n) = a + c * n * (p + o / 2) + d * n * p / o
    n    = (slo - a) / (c * (p + o / 2) + d * p / o)        the most that keeps y at the objective
    rate = n / (o * y(n))                                    requests/s, n also bounded by KV and seats

The closed form leaves queueing out and is 5 to 12 % optimistic; headroom and the safety net are for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import sqrt

_MEMORY = 0.9885  # per window of 2 s: half is forgotten in 2 minutes
_MEMORY_SURPRISED = 0.9  # while the fit is wrong to one side
_SURPRISE = 0.1  # mean relative error of recent windows at which it is
_ENOUGH = 6.0  # windows before anything is believed
_ERROR = 0.3  # standard error over coefficient up to which it is believed


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """Fitted constants: seconds per step, per KV token in use, per prefill token."""

    a: float
    c: float
    d: float

    def step(self, kv_tokens: float) -> float:
        """Decode step without prefill, seconds."""
        return self.a + self.c * kv_tokens


def solve_linear(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Gaussian elimination with pivoting; None if the system is (nearly) singular."""
    n = len(right)
    rows = [[*matrix[i], right[i]] for i in range(n)]
    scale = max((abs(x) for row in matrix for x in row), default=0.0)
    for i in range(n):
        pivot = max(range(i, n), key=lambda r: abs(rows[r][i]))
        if abs(rows[pivot][i]) <= 1e-9 * scale:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(i + 1, n):
            factor = rows[r][i] / rows[i][i]
            for k in range(i, n + 1):
                rows[r][k] -= factor * rows[i][k]
    out = [0.0] * n
    for i in reversed(range(n)):
        out[i] = (rows[i][n] - sum(rows[i][k] * out[k] for k in range(i + 1, n))) / rows[i][i]
    return out


class SpeedFit:
    """Decayed sums of one replica's windows. `speed` is what is believed of it now."""

    __slots__ = ("_bias", "_count", "_products", "_right", "_square", "speed")

    def __init__(self) -> None:
        self._count = 0.0  # windows, decayed
        self._products = [[0.0] * 3 for _ in range(3)]  # of the regressors 1, kv / 1e4, 1e3 * u * y / 1e3
        self._right = [0.0] * 3
        self._square = 0.0
        self._bias = 0.0  # mean relative error of the last few windows, signed
        self.speed: EngineSpeed | None = None

    def add(self, y: float, kv: float, u: float) -> None:
        """One window: mean seconds between tokens, mean KV tokens, prefill tokens per second."""
        # Relative residuals, so that windows at light load count as much as those at heavy load.
        x = (1.0 / y, kv / 1e4 / y, u / 1e2)
        keep = _MEMORY if abs(self._surprise(y, kv, u)) < _SURPRISE else _MEMORY_SURPRISED
        self._count = self._count * keep + 1.0
        self._square = self._square * keep + 1.0
        for i in range(3):
            self._right[i] = self._right[i] * keep + x[i]
            row = self._products[i]
            for k in range(3):
                row[k] = row[k] * keep + x[i] * x[k]
        self.speed = self._solve() if self._count >= _ENOUGH else None

    def _surprise(self, y: float, kv: float, u: float) -> float:
        """How far the last windows lay to one side of the fit, in parts: an engine that changed shows here first."""
        speed = self.speed
        if speed is not None:
            off = y * max(1.0 - speed.d * u, 0.05) / speed.step(kv) - 1.0
            self._bias += 0.2 * (off - self._bias)
        return self._bias

    def _solve(self) -> EngineSpeed | None:
        best: tuple[float, tuple[int, ...], list[float]] | None = None
        for size in (3, 2, 1):
            for chosen in combinations(range(3), size):
                matrix = [[self._products[i][k] for k in chosen] for i in chosen]
                values = solve_linear(matrix, [self._right[i] for i in chosen])
                if values is None or min(values) < 0.0:
                    continue
                residual = self._square - sum(v * self._right[i] for v, i in zip(values, chosen, strict=True))
                if best is None or residual < best[0] - 1e-12:
                    best = (residual, chosen, values)
        if best is None:
            return None
        residual, chosen, values = best
        if 0 not in chosen or not self._believed(chosen, values, max(residual, 0.0)):
            return None
        full = dict(zip(chosen, values, strict=True))
        return EngineSpeed(full[0], full.get(1, 0.0) / 1e4, full.get(2, 0.0) / 1e2)

    def _believed(self, chosen: tuple[int, ...], values: list[float], residual: float) -> bool:
        """Whether every coefficient in use stands clear of its error. Without prefill there is no telling d."""
        if 2 not in chosen:
            return False
        spread = residual / max(self._count - len(chosen), 1.0) + 1e-8
        matrix = [[self._products[i][k] for k in chosen] for i in chosen]
        for n, value in enumerate(values):
            unit = [0.0] * len(chosen)
            unit[n] = 1.0
            column = solve_linear(matrix, unit)
            if column is None or sqrt(max(spread * column[n], 0.0)) > _ERROR * value:
                return False
        return True


@dataclass(frozen=True, slots=True)
class Load:
    """The most load that meets the objective: sequences side by side, and requests a second."""

    sequences: float
    requests_per_s: float
    token_s: float  # time between tokens there


def solve_load(
    speed: EngineSpeed,
    *,
    tpot_slo_s: float,
    prompt_tokens: float,
    output_tokens: float,
    kv_tokens: float | None,
    seats: float | None,
    kv_share: float = 0.9,
) -> Load | None:
    """The load one replica carries within `tpot_slo_s` at this mix; None if even one sequence would miss it.

    `prompt_tokens` are uncached ones. KV counts a sequence at half its output."""
    p, o = prompt_tokens, max(output_tokens, 1.0)
    per_sequence = speed.c * (p + o / 2) + speed.d * p / o
    if speed.a + per_sequence > tpot_slo_s:
        return None
    n = (tpot_slo_s - speed.a) / per_sequence if per_sequence > 0 else float("inf")
    if kv_tokens is not None:
        n = min(n, kv_share * kv_tokens / (p + o / 2))
    if seats is not None:
        n = min(n, seats)
    if n == float("inf"):
        return None
    token_s = speed.a + per_sequence * n
    return Load(n, n / (o * token_s), token_s)
