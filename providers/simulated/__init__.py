"""A continuous-batching engine as pure steps, and the same engine over HTTP.

In virtual time: `Engine(preset("small"))`, then `submit`, `cancel`, and `step` (or `begin` and `finish`) with the time.
In real or scaled time: `await serve_simulated(ServiceSettings(engine=preset("small"), speed=2.0))` gives a server with
`.port`, `.url`, `.state()`, `.add_faults()` and `await .close()`; `weighbridge simulate` is the same from a shell.

Over HTTP, besides what vLLM serves: `GET /sim/state[?id=…]` shows the engine and the latest requests, `POST
/sim/faults` switches faults on (`faults.FaultKind` says which), `DELETE /sim/faults[?kind=…]` switches them off.

Four bytes of text are one token (`text_of`, `chat_of` make prompts to length). At temperature 0 the answer follows from
model and prompt alone, and a final assistant message sent with `continue_final_message` is continued where it stops.
"""

from providers.simulated.engine import Engine
from providers.simulated.faults import Fault, FaultKind, Match
from providers.simulated.sequence import ContextTooLong, EngineSnapshot, Phase, Refused, Request, Sequence, Step
from providers.simulated.server import SimulatedServer, run_simulated, serve_simulated
from providers.simulated.service import Flavour, Lengths, ServiceSettings
from providers.simulated.settings import PRESETS, AdmissionMode, EngineSettings, Scheduling, preset
from providers.simulated.text import CHAT_OVERHEAD_TOKENS, TOKEN_BYTES, block_keys, chat_of, text_of, tokens_of

__all__ = [
    "CHAT_OVERHEAD_TOKENS",
    "PRESETS",
    "TOKEN_BYTES",
    "AdmissionMode",
    "ContextTooLong",
    "Engine",
    "EngineSettings",
    "EngineSnapshot",
    "Fault",
    "FaultKind",
    "Flavour",
    "Lengths",
    "Match",
    "Phase",
    "Refused",
    "Request",
    "Scheduling",
    "Sequence",
    "ServiceSettings",
    "SimulatedServer",
    "Step",
    "block_keys",
    "chat_of",
    "preset",
    "run_simulated",
    "serve_simulated",
    "text_of",
    "tokens_of",
]
