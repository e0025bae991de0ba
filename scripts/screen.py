"""A terminal's screen out of what programs have written to it, and a drawing (SVG) of how it changed.

Of control characters and sequences it knows those that copal and a shell's prompt write; any other is an error, not a wrong picture.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

COLUMNS = 88

#: Erases to the end of the line; a shell that turns pasting in brackets on or off changes nothing that is seen.
ERASE = "\x1b[K"
SILENT = ("\x1b[?2004h", "\x1b[?2004l")
SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[@-~])?")


class Unknown(ValueError):
    """Something else than text and those."""


class Screen:
    """What is on the screen. Lines that would have scrolled away stay."""

    def __init__(self) -> None:
        self.lines = [""]
        self.column = 0

    def feed(self, text: str) -> None:
        """What a program has written; a sequence must be whole."""
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                found = SEQUENCE.match(text, at)
                sequence = found.group() if found else ""
                if sequence == ERASE:
                    self.lines[-1] = self.lines[-1][: self.column]
                elif sequence not in SILENT:
                    raise Unknown(f"the sequence {text[at : at + 8]!r} is not known")
                at += len(sequence)
                continue
            self.put(text[at])
            at += 1

    def put(self, char: str) -> None:
        """One character."""
        if char == "\n":
            self.lines.append("")
            # A terminal that is cooked sends a return before it.
            self.column = 0
        elif char == "\r":
            self.column = 0
        elif not char.isprintable():
            raise Unknown(f"the character {char!r} is not known")
        else:
            if self.column == COLUMNS:
                self.put("\n")
            line = self.lines[-1].ljust(self.column)
            self.lines[-1] = line[: self.column] + char + line[self.column + 1 :]
            self.column += 1


@dataclass
class Scene:
    """A recording: what stands above it, and what came at which second."""

    caption: str
    written: list[tuple[float, str]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.written[-1][0] - self.written[0][0]

    def frames(self, spacing: float) -> list[tuple[float, list[str]]]:
        """The screen at moments that are at least so far apart, and at the end."""
        screen, found = Screen(), []
        start = self.written[0][0]
        for number, (at, text) in enumerate(self.written):
            screen.feed(text)
            following = self.written[number + 1][0] - start if number + 1 < len(self.written) else None
            if following is None or not found or following - found[-1][0] >= spacing:
                found.append((at - start, [line.rstrip() for line in screen.lines]))
        return found


@dataclass(frozen=True)
class Theme:
    """Colours, as those of the page that the picture is on."""

    name: str
    back: str
    bar: str
    line: str
    text: str
    faint: str


THEMES = (
    Theme("light", "#ffffff", "#f6f8fa", "#d1d9e0", "#1f2328", "#59636e"),
    Theme("dark", "#0d1117", "#151b23", "#3d444d", "#f0f6fc", "#9198a1"),
)

# A character's cell, the bar with the caption, and what is around the text.
CELL, ROW, BAR, EDGE = 8.4, 19, 34, 14
# Seconds: the fastest change, the longest scene, how long the end of a scene stays, and how long the end of the last one.
SPACING, LONGEST, STAYS, RESTS = 0.25, 20.0, 3.0, 8.0
#: Then the end stays for good: a picture that moves for ever is in the way of who reads.
TIMES = 3

FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"


@dataclass
class Piece:
    """A text at a place, from one moment to another, or to the end."""

    row: int
    text: str
    begin: float
    end: float | None = None


def pieces(scenes: list[Scene]) -> tuple[list[Piece], float]:
    """What is seen when, and the seconds of one turn. Row -1 is the caption. Longer scenes are shown faster, which their captions say."""
    found: list[Piece] = []
    now = 0.0
    for scene in scenes:
        faster = max(1, -int(-scene.seconds // LONGEST))
        pace = f", shown {faster} times as fast" if faster > 1 else ""
        shown: dict[int, Piece] = {-1: Piece(-1, scene.caption + pace, now)}
        frames = scene.frames(SPACING * faster)
        for at, lines in frames:
            moment = now + at / faster
            for row in sorted({*shown, *range(len(lines))} - {-1}):
                text = lines[row] if row < len(lines) else ""
                old = shown.get(row)
                if old is None or old.text != text:
                    if old is not None and old.begin < moment:
                        old.end = moment
                        found.append(old)
                    shown[row] = Piece(row, text, moment)
        now += frames[-1][0] / faster + (RESTS if scene is scenes[-1] else STAYS)
        for piece in shown.values():
            piece.end = None if scene is scenes[-1] else now
            found.append(piece)
    return [piece for piece in found if piece.text], now


def drawing(theme: Theme, title: str, about: str, made: str, scenes: list[Scene]) -> str:
    """The picture. Where nothing may or can move, it is the end of the last scene."""
    texts, turn = pieces(scenes)
    rows = max(piece.row for piece in texts) + 1
    width, height = COLUMNS * CELL + 2 * EDGE, BAR + rows * ROW + 2 * EDGE
    rules, drawn = [], []
    for number, piece in enumerate(sorted(texts, key=lambda piece: (piece.end is not None, piece.begin, piece.row))):
        kinds = ["c"] if piece.row < 0 else []
        percent = lambda at: f"{at * 100 / turn:.4g}%"
        steps = [f"0%{{visibility:{'hidden' if piece.begin else 'visible'}}}"]
        steps += [f"{percent(piece.begin)}{{visibility:visible}}"] if piece.begin else []
        steps += [f"{percent(piece.end)}{{visibility:hidden}}"] if piece.end is not None else []
        hidden = ""
        if len(steps) > 1:
            kinds.append(f"a{number}")
            rules.append(f"@keyframes k{number}{{{''.join(steps)}}}.a{number}{{animation-name:k{number}}}")
        if piece.end is not None:
            kinds.append("h")
            hidden = ' aria-hidden="true"'
        y = BAR - 12 if piece.row < 0 else BAR + EDGE + piece.row * ROW + 13
        bare = piece.text.lstrip()
        x = EDGE if piece.row < 0 else EDGE + (len(piece.text) - len(bare)) * CELL
        long = "" if piece.row < 0 else f' textLength="{len(bare) * CELL:.4g}"'
        name = f' class="{" ".join(kinds)}"' if kinds else ""
        drawn.append(f'<text x="{x:.4g}" y="{y}"{long}{name}{hidden}>{escape(bare)}</text>')
    newline = "\n"
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}" role="img" aria-labelledby="t d" xml:space="preserve">
<title id="t">{escape(title)}</title>
<desc id="d">{escape(about)}</desc>
<metadata>{escape(made)}</metadata>
<style>
text{{font:14px {FONT};fill:{theme.text};white-space:pre}}
.c{{font:13px system-ui,sans-serif;fill:{theme.faint}}}
.h{{visibility:hidden}}
@media (prefers-reduced-motion:no-preference){{
text{{animation:{turn:.2f}s step-end {TIMES}}}
{newline.join(rules)}
}}
</style>
<rect x=".5" y=".5" width="{width - 1:.0f}" height="{height - 1}" rx="8" fill="{theme.back}" stroke="{theme.line}"/>
<path d="M1 {BAR}V9a8 8 0 0 1 8-8H{width - 9:.0f}a8 8 0 0 1 8 8V{BAR}z" fill="{theme.bar}"/>
{newline.join(drawn)}
</svg>
"""
