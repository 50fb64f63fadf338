"""A continuous-batching engine as pure steps, and the same engine over HTTP."""

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
