"""The benchmark's command: ``python -m benchmark [WHAT]``, one module for each."""

from __future__ import annotations

import importlib
import os
import signal
import sys

from pymongo.errors import PyMongoError

from benchmark.measure import WrongError
from mongo_session_service import MongoSessionServiceError
from mongo_session_service.embedded import EmbeddedServerError

WHAT = (
    *("services", "consumers", "curves", "disk", "feed", "lists", "reloads", "starts"),
    *("stuck", "tracing", "transfer", "turns"),
)


def main() -> int:
    """Run what is asked for, services by default; the exit code."""
    what = sys.argv.pop(1) if sys.argv[1:2] and sys.argv[1] in WHAT else WHAT[0]
    try:
        code: int = importlib.import_module(f"benchmark.{what}").main()
    except KeyboardInterrupt:
        print("\nbench: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # as after "| head"
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (
        WrongError,
        MongoSessionServiceError,
        EmbeddedServerError,
        PyMongoError,
    ) as error:
        print(f"\nbench: {type(error).__name__}: {error}"[:300], file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
