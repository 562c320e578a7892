"""The benchmark's command: ``python -m benchmark [PROGRAM]``, services by default."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from concurrent.futures import BrokenExecutor

from pymongo.errors import PyMongoError

from benchmark.figures import WrongError
from benchmark.worker import StepError
from mongo_session_service import MongoSessionServiceError
from mongo_session_service.embedded import EmbeddedServerError

PROGRAMS = ("services", "equal", "feed", "sizes")
FAILURES = (
    *(WrongError, StepError, BrokenExecutor),
    *(MongoSessionServiceError, EmbeddedServerError, PyMongoError),
)


def main() -> int:
    """Run the program that is asked for, services by default; the exit code."""
    program = (
        sys.argv.pop(1) if sys.argv[1:2] and sys.argv[1] in PROGRAMS else "services"
    )
    try:
        code: int = importlib.import_module(f"benchmark.{program}").main()
    except KeyboardInterrupt:
        print("\nbench: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # as after "| head"
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except FAILURES as error:
        print(f"\nbench: {type(error).__name__}: {error}"[:300], file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
