"""A request's tokens before it runs, learned from what upstreams reported.

Prompt. No tokenizer runs here. Tokens are taken as `a + b * bytes`, where `b` is the text's tokens per byte and `a`
holds the chat template less the JSON around the text. The line is fitted by decayed least squares on *relative* error
(the noise of a token count grows with the text), and towards a prior, so that it is defined from the first request
on:

    minimise  sum_i d^age_i * ((tokens_i - a - b*bytes_i) / bytes_i)^2  +  la*(a - a0)^2  +  lb*(b - b0)^2

A model's line starts from a quarter of a token per byte; a tenant's line starts from its model's, and that start
weighs as much as one request, so a tenant who writes another language or code is known by its own ratio after a few
requests. Pictures are counted apart: what the line does not explain, divided by their number, is averaged.

Output. One decayed histogram of lengths for each (tenant, model), and within it one for each range of the cap that
the tenant asks for, as soon as it asks for more than one; a caller who sets 100 wants something else than one who
sets 4,000. Under 20 samples the next wider one is asked: (tenant, model, range of cap), (tenant, model), model, and
last the prior `min(cap, 1024)`. An answer that was cancelled, cut, or stopped by its cap is a lower bound, not a
length (see `quantile`).

Several answers to one request (`n`) are taken as alike: their sum is n times one answer's quantile, which is on the
safe side.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from gateway.measure import Measured
from gateway.quantile import Lengths

ENOUGH = 20  # samples from which a histogram is trusted
PRIOR_OUTPUT = 1024  # output tokens expected where nothing is known
PRIOR_SLOPE = 0.25  # tokens per byte where nothing is known
PRIOR_IMAGE = 1000.0  # tokens of a picture where nothing is known
_DECAY = 0.99  # of the line's sums at each observation: about the last hundred requests count
_FLAT = 1.6e-6  # (0.025 / 20)^2: pull on the intercept where ratios vary by 0.025 and intercepts by 20 tokens
_SLOPES = (0.01, 2.0)  # tokens per byte outside of these are a report not to be believed
_MIN_BYTES = 16  # no body is shorter; keeps one odd report from weighing as thousands

_Key = TypeVar("_Key", tuple[str, str], str)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a request is expected to take. Tokens throughout; output figures are the sum over the answers asked for."""

    prompt_tokens: int
    output_tokens: int  # to reserve against limits: the reservation quantile, never above output_cap
    output_median: int
    output_cap: int | None  # the most that can come: the caller's maximum and the room left in the context; None = open
    remaining: Callable[[int], int]  # tokens still to come after so many; at least 1 below the cap, 0 at it


@dataclass(frozen=True, slots=True)
class Learned:
    """What is known of one (tenant, model), for people and tests."""

    prompts: int  # prompt counts learned from
    tokens_per_byte: float
    overhead_tokens: float  # the line's value at zero bytes
    image_tokens: float
    outputs: int  # answers learned from, cut ones included
    output_p50: int | None
    output_p90: int | None


class _Line:
    """Decayed weighted least squares of tokens on bytes. With u = 1/bytes it is the line  tokens*u = a*u + b."""

    __slots__ = ("count", "intercept", "slope", "su", "suu", "suv", "sv", "weight")

    def __init__(self) -> None:
        self.count = 0  # observations ever
        self.weight = 0.0  # decayed count
        self.su = 0.0  # decayed sums over observations of u, tokens*u, u*u, u*u*tokens
        self.sv = 0.0
        self.suu = 0.0
        self.suv = 0.0
        self.intercept = 0.0  # the solution, as of the last solve
        self.slope = PRIOR_SLOPE

    def add(self, text_bytes: int, tokens: int) -> None:
        u = 1.0 / text_bytes
        v = tokens * u
        d = _DECAY
        self.count += 1
        self.weight = self.weight * d + 1.0
        self.su = self.su * d + u
        self.sv = self.sv * d + v
        self.suu = self.suu * d + u * u
        self.suv = self.suv * d + u * v

    def solve(self, intercept: float, slope: float, weight: float) -> None:
        """Fit, drawn towards the line given: its slope with the weight of so many requests, its intercept by _FLAT."""
        suu = self.suu + _FLAT
        n = self.weight + weight
        suv = self.suv + _FLAT * intercept
        sv = self.sv + weight * slope
        determinant = suu * n - self.su * self.su  # > 0: the prior adds to both squares
        self.intercept = (suv * n - self.su * sv) / determinant
        self.slope = (suu * sv - self.su * suv) / determinant


class _Known:
    """All that is learned for one (tenant, model), or for a model over its tenants."""

    __slots__ = ("by_cap", "first_range", "image_tokens", "images", "line", "outputs")

    def __init__(self, half_life: float) -> None:
        self.line = _Line()
        self.image_tokens = PRIOR_IMAGE
        self.images = 0  # requests with pictures learned from
        self.outputs = Lengths(half_life)
        self.first_range = -1  # the range of cap of the first answer; by_cap stays empty while there is no other
        self.by_cap: dict[int, Lengths] = {}  # at most 13 ranges, a factor of four each

    def add_output(self, cap_range: int, length: int, ended: bool) -> None:
        if cap_range != self.first_range and not self.by_cap:
            if self.first_range < 0:
                self.first_range = cap_range
            else:  # a second range: all answers so far were of the first
                self.by_cap[self.first_range] = self.outputs.copy()
        self.outputs.add(length, ended=ended)
        if self.by_cap:
            narrow = self.by_cap.get(cap_range)
            if narrow is None:
                narrow = self.by_cap[cap_range] = Lengths(self.outputs.half_life)
            narrow.add(length, ended=ended)

    def add_image(self, tokens: float) -> None:
        self.images += 1
        self.image_tokens += (tokens - self.image_tokens) / min(self.images, 20)


class Remaining:
    """Tokens still to come of a running answer, by the conditional quantile of its histogram as that is now."""

    __slots__ = ("_cap", "_lengths", "_n", "_q")

    def __init__(self, lengths: Lengths | None, cap: int | None, n: int, q: float) -> None:
        self._lengths = lengths  # None: nothing learned, the prior stands in
        self._cap = cap  # over all answers, tokens
        self._n = n  # answers
        self._q = q  # quantile of the remaining length

    def __call__(self, generated: int) -> int:
        n = self._n
        one = generated // n if n > 1 else generated
        lengths = self._lengths
        left = lengths.remaining(one, self._q) if lengths is not None else None
        if left is None:
            # where the end is unknown, as far as the prior or the longest seen; past that, half as long again
            known = PRIOR_OUTPUT if lengths is None else max(PRIOR_OUTPUT, lengths.longest) if lengths.open_ended else 0
            left = known - one if known > one else max(16, one >> 1)
        if n > 1:
            left *= n
        cap = self._cap
        if cap is not None and generated + left > cap:
            return cap - generated if cap > generated else 0
        return left


class Estimator:
    """Learns from reports and says what to expect. Plain synchronous code, one owner, no clock: age is counted in
    requests.

    Memory is bounded: at most `pairs` (tenant, model) entries, the least recently reported forgotten first, of about
    2.5 kB for each histogram (one, plus one for each range of caps in use).
    """

    def __init__(
        self,
        *,
        reserve_q: float = 0.9,
        remaining_q: float = 0.5,
        half_life: float = 500.0,
        pairs: int = 10_000,
    ) -> None:
        """`reserve_q` is the output quantile reserved against limits; `remaining_q` that of what running answers still
        take (0.5 for throughput, 0.75 where stalls matter more); `half_life` is that of output lengths, in answers."""
        self._reserve_q = reserve_q
        self._remaining_q = remaining_q
        self._half_life = half_life
        self._bound = pairs
        self._pairs: OrderedDict[tuple[str, str], _Known] = OrderedDict()  # least recently reported first
        self._models: OrderedDict[str, _Known] = OrderedDict()  # the same over all tenants; same bound

    def estimate(self, tenant: str, model: str, measured: Measured, context: int | None = None) -> Estimate:
        """What a request takes. `context` is the model's window in tokens, if known; the answer must fit beside the
        prompt."""
        pair = self._pairs.get((tenant, model))
        wide = self._models.get(model)
        prompt = measured.known_tokens
        if prompt is None:
            prompt = _prompt(pair, wide, measured)
        n = measured.n
        cap = measured.output_cap
        if context is not None:
            room = context - prompt if context > prompt else 1
            if cap is None or cap > room:
                cap = room
        lengths = _lengths(pair, wide, measured.output_cap)
        reserve = median = None
        if lengths is not None:
            reserve = lengths.quantile(self._reserve_q)
            median = lengths.quantile(0.5)
            if reserve is None or median is None:  # mostly cut: longer than anything seen to end
                beyond = max(PRIOR_OUTPUT, lengths.longest)
                reserve = beyond if reserve is None else reserve
                median = reserve if median is None else median
        else:
            reserve = median = PRIOR_OUTPUT
        if cap is not None:
            reserve = min(reserve, cap)
            median = min(median, cap)
            cap *= n
        return Estimate(prompt, reserve * n, median * n, cap, Remaining(lengths, cap, n, self._remaining_q))

    def observe(
        self,
        tenant: str,
        model: str,
        measured: Measured,
        *,
        prompt_tokens: int | None,
        output_tokens: int | None,
        finished: bool,
    ) -> None:
        """Learn from a request that has ended.

        `prompt_tokens` is the upstream's count, cached tokens included; None where it reported none. `output_tokens`
        is its count over all answers, or the tokens seen in a stream that was cut. `finished` says that the answer
        came to its own end; a cancelled or broken one passes False. An answer as long as its cap is taken as cut,
        whatever `finished` says.
        """
        pair = self._known(self._pairs, (tenant, model))
        wide = self._known(self._models, model)
        if prompt_tokens and measured.known_tokens is None:
            text_bytes = max(measured.text_bytes, _MIN_BYTES)
            if measured.images:
                image = max(0.0, (prompt_tokens - _text(pair, wide, text_bytes)) / measured.images)
                pair.add_image(image)
                wide.add_image(image)
            elif _SLOPES[0] <= prompt_tokens / text_bytes <= _SLOPES[1]:
                wide.line.add(text_bytes, prompt_tokens)
                wide.line.solve(0.0, PRIOR_SLOPE, 0.1)
                pair.line.add(text_bytes, prompt_tokens)
                pair.line.solve(wide.line.intercept, wide.line.slope, 1.0)
        cap = measured.output_cap
        if output_tokens is not None and cap != 0 and (finished or output_tokens > 0):
            length = output_tokens // measured.n if measured.n > 1 else output_tokens
            ended = finished and (cap is None or length < cap)
            pair.add_output(_range(cap), length, ended)
            wide.outputs.add(length, ended=ended)

    def learned(self, tenant: str, model: str) -> Learned | None:
        """What is known of a (tenant, model); None if nothing was ever reported for it or it was forgotten."""
        pair = self._pairs.get((tenant, model))
        if pair is None:
            return None
        return Learned(
            prompts=pair.line.count,
            tokens_per_byte=pair.line.slope,
            overhead_tokens=pair.line.intercept,
            image_tokens=pair.image_tokens,
            outputs=pair.outputs.samples,
            output_p50=pair.outputs.quantile(0.5),
            output_p90=pair.outputs.quantile(0.9),
        )

    def __len__(self) -> int:
        """(tenant, model) pairs held."""
        return len(self._pairs)

    def _known(self, table: OrderedDict[_Key, _Known], key: _Key) -> _Known:
        known = table.get(key)
        if known is None:
            known = table[key] = _Known(self._half_life)
            if len(table) > self._bound:
                table.popitem(last=False)
        else:
            table.move_to_end(key)
        return known


def _prompt(pair: _Known | None, wide: _Known | None, measured: Measured) -> int:
    """Expected prompt tokens, at least 1."""
    tokens = _text(pair, wide, measured.text_bytes)
    if measured.images:
        by = pair if pair is not None and pair.images else wide
        tokens += measured.images * (by.image_tokens if by is not None else PRIOR_IMAGE)
    return int(tokens + 0.5) if tokens > 1.0 else 1


def _text(pair: _Known | None, wide: _Known | None, text_bytes: int) -> float:
    if pair is not None and pair.line.count:
        line = pair.line
    elif wide is not None:
        line = wide.line
    else:
        return PRIOR_SLOPE * text_bytes
    return line.intercept + line.slope * text_bytes


def _range(cap: int | None) -> int:
    """The range a cap falls in: 0 for none, then up to 2, 8, 32, 128, 512, 2,048, 8,192 and so on; 12 is the last."""
    return 0 if cap is None else min(12, 1 + (max(cap, 1) - 1).bit_length() // 2)


def _lengths(pair: _Known | None, wide: _Known | None, cap: int | None) -> Lengths | None:
    """The narrowest histogram with enough samples; None where there is none."""
    if pair is not None and pair.outputs.samples >= ENOUGH:
        if pair.by_cap:
            narrow = pair.by_cap.get(_range(cap))
            if narrow is not None and narrow.samples >= ENOUGH:
                return narrow
        return pair.outputs
    if wide is not None and wide.outputs.samples >= ENOUGH:
        return wide.outputs
    return None
