"""Makes prompt text of a given number of tokens, sharing prefixes where the trace does.

The text is plain ASCII words, so its length in bytes is its length in characters and nothing in it is escaped in
JSON. A block of the trace is always the same text; a request without blocks gets text of its own, so no two share a
prefix by accident. A token is taken as `bytes_per_token` bytes, which is exact for an engine that counts so (the
simulated one) and near for the others.
"""

import random
from collections import OrderedDict

from gateway.replay.shapes import BLOCK_TOKENS, Request

_WORDS = """
about all an and are as at be been but by call can come could day did do down each find first for from go had
has have her him his hot how if in is it know like long look make many may more most my no now number of on one
or other out over people said see she side so some sound than that the their them then there these they thing
this time to two up use was water way we were what when which who will with word would write your
""".split()  # noqa: SIM905 (a list of a hundred literals hides the words)
_KEPT = 4096  # block texts held, about 8 MB


class Prompts:
    """Text for the requests of one trace. The same request gets the same text in every run."""

    def __init__(
        self, bytes_per_token: float = 4.0, *, scale: float = 1.0, overhead_tokens: int = 0, seed: int = 1
    ) -> None:
        """`scale` multiplies all lengths, blocks included; `overhead_tokens` are those the engine's chat template adds
        to each prompt, so its text is shorter by as many."""
        self._bytes_per_token = bytes_per_token * scale  # bytes of text for each token of the trace
        self._overhead = round(overhead_tokens * bytes_per_token)  # bytes
        self._seed = seed
        self._blocks: OrderedDict[int, str] = OrderedDict()  # least recently used first

    def text(self, index: int, request: Request) -> str:
        """The prompt of the trace's request number `index`, at least one byte; the same request gets the same text."""
        size = max(1, round(request.prompt_tokens * self._bytes_per_token) - self._overhead)
        if not request.blocks:
            return _words(f"{self._seed}/own/{index}", size)
        text = "".join(map(self._block, request.blocks))[:size]
        return text if len(text) == size else text + _words(f"{self._seed}/own/{index}", size - len(text))

    def _block(self, block: int) -> str:
        text = self._blocks.get(block)
        if text is None:
            size = round(BLOCK_TOKENS * self._bytes_per_token)
            text = self._blocks[block] = _words(f"{self._seed}/block/{block}", size)
            if len(self._blocks) > _KEPT:
                self._blocks.popitem(last=False)
        else:
            self._blocks.move_to_end(block)
        return text


def _words(seed: str, size: int) -> str:
    """`size` bytes of words, ending in a space, the first eight characters telling the seeds apart."""
    rng = random.Random(seed)
    text = f"{rng.getrandbits(32):08x} " + " ".join(rng.choices(_WORDS, k=size // 3 + 1))
    return text[: size - 1] + " " if len(text) >= size else text + " " * (size - len(text))
