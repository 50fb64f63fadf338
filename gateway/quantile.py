"""How long answers are: a decayed histogram of output lengths that understands answers cut short.

Idea. Lengths (tokens) fall into integer bins that are exact up to 31 and then 16 to the octave, so a bin is never
wider than 1/16 of its value; a quantile is interpolated inside its bin, so the width of the bin does not show in the
coverage. Older observations fade by a constant factor for each newer one (forward decay: the newcomer weighs more
instead, and one addition is the whole update).

Censoring. An answer that was cancelled, cut by a failure, or stopped by its own `max_tokens` says only that the natural
length is at least what was seen. Counting it as that length would bias the histogram short, dropping it would bias it
too (long answers are cut more often). So such lengths are kept apart and the distribution is the product-limit estimate
of Kaplan and Meier over the bins:

    at_risk(i) = sum of all weights in bins >= i        survival(i) = prod_{j <= i} (1 - ended(j) / at_risk(j))

A length censored in a bin counts as at risk in that bin. Without censored lengths this is the plain empirical
distribution.

Small samples. The k-th smallest of n draws covers k/(n+1) of the next ones on average, so the rank asked for is
q*(n+1), not q*n: the 0.9 quantile of 20 samples then covers 90 %, not 86 %.
"""

from array import array
from bisect import bisect_left
from itertools import accumulate

_EXACT = 5  # bits: lengths below 2**5 have a bin of their own
_TOP_BITS = 20  # the last bin ends at 2**20 tokens and takes what is longer
_TOP = (1 << _TOP_BITS) - 1


def bin_of(length: int) -> int:
    """The bin of a length in tokens: the length itself below 32, then sixteen equal bins to each octave."""
    if length > _TOP:
        length = _TOP
    shift = length.bit_length() - _EXACT
    return (shift << 4) + (length >> shift) if shift > 0 else length


BINS = bin_of(_TOP) + 1


def _low(index: int) -> int:
    """The first length in a bin, tokens; the inverse of `bin_of`."""
    shift = (index >> 4) - 1
    return (16 + (index & 15)) << shift if shift > 0 else index


_LOW = tuple(_low(index) for index in range(BINS + 1))  # first length in each bin, tokens
_WIDTH = tuple(_LOW[index + 1] - _LOW[index] for index in range(BINS))  # lengths in each bin

_RESCALE = 1e12  # weights are brought back to one when the newest passes this


class Lengths:
    """Decayed distribution of output lengths in tokens.

    `add` costs one addition; the cumulative distribution is rebuilt by the first question after enough additions
    (each one up to 64 samples, then every sixteenth), so a question costs a bisection.
    """

    __slots__ = (
        "_cumulative",
        "_cut",
        "_ended",
        "_growth",
        "_last",
        "_quantiles",
        "_stale",
        "_total",
        "_weight",
        "_weights",
        "half_life",
        "samples",
    )

    def __init__(self, half_life: float = 500.0) -> None:
        """`half_life` is in observations: after so many newer ones an observation counts half."""
        self.half_life = half_life
        self.samples = 0  # observations ever added, ended or cut; never falls
        self._growth: float = 2.0 ** (1.0 / half_life)
        self._weight = 1.0  # of the next observation; grows by _growth each time
        self._weights = 0.0  # sum of _ended and _cut
        self._ended = array("d", bytes(8 * BINS))  # weight of answers that ended by themselves in each bin
        self._cut: array[float] | None = None  # weight of answers censored in each bin; None until there is one
        self._stale = 0  # observations since _cumulative was built
        self._cumulative: list[float] = []  # weight (or, with censoring, probability) up to and with each bin
        self._quantiles: dict[float, int | None] = {}  # answers given since then, by q
        self._last = 0  # the longest bin that held anything then
        self._total = 0.0  # what _cumulative would reach if nothing were censored

    def add(self, length: int, *, ended: bool = True) -> None:
        """Record an answer of `length` tokens; `ended=False` says that it would have been at least so long."""
        index = bin_of(length)
        weight = self._weight
        if ended:
            self._ended[index] += weight
        else:
            if self._cut is None:
                self._cut = array("d", bytes(8 * BINS))
            self._cut[index] += weight
        self._weights += weight
        self._weight = weight * self._growth
        self.samples += 1
        self._stale += 1
        if weight > _RESCALE:
            self._rescale()

    def copy(self) -> "Lengths":
        """An independent one that knows the same."""
        twin = Lengths(self.half_life)
        twin.samples = self.samples
        twin._weight = self._weight
        twin._weights = self._weights
        twin._ended = self._ended[:]
        twin._cut = self._cut[:] if self._cut is not None else None
        twin._stale = self._stale
        twin._cumulative = self._cumulative  # never changed in place
        twin._total = self._total
        twin._last = self._last
        return twin

    def quantile(self, q: float) -> int | None:
        """The smallest length that a share `q` of answers does not pass, in tokens.

        None where that lies beyond everything seen to end (too much was censored, or there are no samples).
        """
        cumulative = self._fresh()
        if not self.samples:
            return None
        if q in self._quantiles:
            return self._quantiles[q]
        n = self.effective
        length = self._quantiles[q] = self._at(cumulative, self._total * min(1.0, q * (n + 1.0) / n))
        return length

    def remaining(self, generated: int, q: float) -> int | None:
        """Tokens still to come after `generated`, at quantile `q` of the answers that are longer: Q[L | L > g] - g.

        At least 1. None where less than half an observation's weight is known to have gone on past `generated`.
        """
        cumulative = self._fresh()
        if not self.samples:
            return None
        index = bin_of(generated)
        before = cumulative[index - 1] if index else 0.0
        inside = cumulative[index] - before
        passed = before + inside * min(1.0, (generated - _LOW[index] + 1) / _WIDTH[index])
        total = self._total
        alive = total - passed
        if alive * self.effective <= 0.5 * total:
            return None
        length = self._at(cumulative, passed + q * alive)
        if length is None:
            return None
        return length - generated if length > generated else 1

    @property
    def effective(self) -> float:
        """How many undecayed observations the present weights are worth."""
        newest = self._weight / self._growth
        return self._weights / newest

    @property
    def open_ended(self) -> bool:
        """Whether more than half an observation's weight was cut with nothing longer having ended.

        Then `quantile` and `remaining` say None because the tail is unknown, not because nothing is so long.
        """
        cumulative = self._fresh()
        return bool(self.samples) and (self._total - cumulative[-1]) * self.effective > 0.5 * self._total

    @property
    def longest(self) -> int:
        """The upper edge of the longest bin that holds anything, ended or cut, in tokens; 0 without samples."""
        self._fresh()
        return _LOW[self._last + 1] - 1 if self.samples else 0

    def _at(self, cumulative: list[float], target: float) -> int | None:
        target *= 1.0 - 1e-9  # a rank that falls on a whole number of samples must not slip past them by rounding
        if target > cumulative[-1]:
            if self._cut is not None:
                return None
            target = cumulative[-1]
        index = bisect_left(cumulative, target)
        width = _WIDTH[index]
        if width == 1:
            return index
        before = cumulative[index - 1]
        share = (target - before) / (cumulative[index] - before)
        # the smallest whole length whose share of the bin reaches the target
        step = -int(-share * width // 1)
        return _LOW[index] + (step - 1 if step > 1 else 0)

    def _fresh(self) -> list[float]:
        stale = self._stale
        if stale and (stale >= 16 or self.samples <= 64 or not self._cumulative):
            self._stale = 0
            self._quantiles.clear()
            if self._cut is None:
                self._cumulative = list(accumulate(self._ended))
                self._total = self._cumulative[-1]
                self._last = bisect_left(self._cumulative, self._total)
            else:
                self._cumulative = self._product_limit(self._cut)
                self._total = 1.0
        return self._cumulative

    def _product_limit(self, cut: "array[float]") -> list[float]:
        survival = 1.0
        at_risk = self._weights
        cumulative: list[float] = []
        for index, (ended, censored) in enumerate(zip(self._ended, cut, strict=True)):
            if ended or censored:
                self._last = index
            if ended:
                survival *= max(0.0, 1.0 - ended / at_risk) if at_risk > ended * (1 + 1e-9) else 0.0
            cumulative.append(1.0 - survival)
            at_risk -= ended + censored
        return cumulative

    def _rescale(self) -> None:
        factor = 1.0 / self._weight
        for weights in (self._ended, self._cut):
            if weights is not None:
                for index in range(BINS):
                    weights[index] *= factor
        # summed anew, so rounding does not gather over a long life
        self._weights = sum(self._ended) + (sum(self._cut) if self._cut is not None else 0.0)
        self._weight = 1.0
        self._stale = max(self._stale, 16)
