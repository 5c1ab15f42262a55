"""An invented Gemini CLI home whose usage is known exactly, for tests, benchmarks and the demo.

A conversation is played as the sequence of writes that Gemini CLI makes. `write_home` makes all of
them at once; a live home makes each one when its time has come. Shapes and key order are those of
the released program: 0.61 for JSONL, 0.37 for JSON. All follows from the plan, byte for byte.
"""

from .chat import MODELS
from .home import chats, write_home
from .live import LiveHome
from .plan import Format, Plan
from .truth import Calls, Truth, Usage, Write

__all__ = [
    "MODELS",
    "Calls",
    "Format",
    "LiveHome",
    "Plan",
    "Truth",
    "Usage",
    "Write",
    "chats",
    "write_home",
]
