"""Guard process: runs one mongod, and ends it with the process that started it.

`mongod.py` launches this file by path, so it imports only the standard library and
starts in about 25 ms. Its stdin is a pipe whose other end only that process holds: each
byte is the number of a signal for mongod. When the pipe closes, which the kernel
ensures even after SIGKILL, the guard kills mongod and removes the temporary directory.
Its output is mongod's pid, and when mongod ends, how it ended and its last output.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys

_STDIN, _STDOUT, _STDERR = 0, 1, 2
_KEPT_OUTPUT = 64 * 1024
_PR_SET_PDEATHSIG = 1
_REMOVERS = 8


def main(throw_away: str, command: list[str]) -> None:
    """Run `command` until it ends; then wait for the end of stdin.

    `throw_away` is the directory to remove after that, or "" for none.
    """
    output, mongods_end = os.pipe()
    try:
        mongod = subprocess.Popen(  # noqa: S603 - the command is mongod.py's
            command,
            stdin=subprocess.DEVNULL,
            stdout=mongods_end,
            stderr=mongods_end,
            start_new_session=True,
            preexec_fn=_die_with_guard,  # noqa: PLW1509 - there is but one thread
        )
    except OSError as error:
        _send_line(f"could not be run: {error}")
    else:
        # A CI runner that cancels a job sends SIGTERM to every process of it; a guard
        # that obeyed would leave mongod's directory behind. Set after mongod has
        # started, because a program inherits the signals its parent ignores.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.close(mongods_end)
        _send_line(f"{mongod.pid}\n")
        last_words = _watch(mongod.pid, output)
        _send_line(f"{_ending(mongod.wait())}\n{last_words}")
    os.close(_STDOUT)
    os.close(_STDERR)
    while os.read(_STDIN, 1):
        pass
    if throw_away:
        _remove_directory(throw_away)


def _send_line(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(_STDOUT, text.encode())


def _die_with_guard() -> None:
    """Have the kernel kill mongod when the guard's only thread ends, however."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _watch(pid: int, output: int) -> str:
    """Pass signals on until mongod's output ends with it; return the end of that."""
    last_words = b""
    watched = [_STDIN, output]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if _STDIN in ready:
            number = os.read(_STDIN, 1)
            if not number:
                watched.remove(_STDIN)
            # To its whole group, so that the child of a wrapper script gets it too. The
            # number cannot be another process's by now: only the guard reaps mongod.
            with contextlib.suppress(OSError):
                os.killpg(pid, number[0] if number else signal.SIGKILL)
        elif chunk := os.read(output, 8192):
            last_words = (last_words + chunk)[-_KEPT_OUTPUT:]
        else:
            return last_words.decode(errors="replace")


def _ending(returncode: int) -> str:
    if returncode < 0:
        return f"was ended by {signal.Signals(-returncode).name}"
    return f"ended with exit code {returncode}"


def _remove_directory(directory: str) -> None:
    """Remove a directory with the thousands of files that mongod may have left."""
    # Imported at the top they would double the time the guard takes to start.
    import shutil  # noqa: PLC0415
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    paths = (f"{at}/{name}" for at, _, names in os.walk(directory) for name in names)
    # Some file systems wait for the disk with each file: wait with several at once.
    with ThreadPoolExecutor(_REMOVERS) as removers:
        # The guard of another member may be removing them as well: that fails here.
        for path in paths:
            removers.submit(os.unlink, path)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
