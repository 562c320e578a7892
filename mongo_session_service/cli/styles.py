"""Styles that can be read on a light and on a dark background, by what they say.

A terminal's own yellow, cyan, green and dim cannot: they vanish on white. Without
colours nothing is lost, since each only repeats what a word says.
"""

from typing import Final

GOOD: Final = "color(28)"  # green
WARNING: Final = "color(166)"  # orange
BAD: Final = "color(196)"  # red
NOTE: Final = "color(32)"  # blue
FAINT: Final = "color(244)"  # grey
