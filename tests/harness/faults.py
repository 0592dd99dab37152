"""Faults as text: read from a file, and put into sources."""
import re


def read_faults(file):
    """Entries of four lines: the name, "- " text, "+ " its replacement, "= " the suite that must see it."""
    lines = [line for line in file.read_text().splitlines() if line.strip() and line[0] != "#"]
    faults = []
    for at in range(0, len(lines), 4):
        name, *rest = lines[at:at + 4]
        if [line[:1] for line in rest] != ["-", "+", "="]:
            raise SystemExit(f"{file}: {name} has not four lines; expected: name, - text, + replacement, = suite")
        faults.append((name, *(line[2:] for line in rest)))
    return faults


def matches(text, source):
    """Where source has the text. All white space matches: a line may be broken elsewhere
    one day."""
    return list(re.finditer(r"\s+".join(map(re.escape, text.split())), source))
