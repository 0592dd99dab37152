"""Chunks and exhibits: what noweb's markup says of a chapter, taken apart, and C as
HTML."""
import re
from pathlib import Path
from prose import FOLD, WORK, Page, block, braced, escape, token

KEYWORDS = set("".join(re.findall(r'"([^"]*)"', Path("book/c-pieces.awk").read_text().split("BEGIN")[1].split("words")[0])).split())
names, roots = {}, {}  # public names and files, and the chunks that define them


class Chunk:
    """One definition of a chunk: its code as pieces of text and uses of others."""

    def __init__(self, page, file, number):
        self.page, self.file, self.number, self.pieces, self.defines, self.mark = page, file, number, [], [], ""
        self.id = f"{chr(65 + len(page.files))}{number}"

    def link(self, page):
        return ("" if page is self.page else self.page.name) + "#" + self.id


def chunk_name(name):
    return re.sub(r"\[\[(.*?)\]\]", r"<code>\1</code>", escape(name))


def code(text, page, own=()):
    """C as HTML: keywords, comments, links from public names to where they are declared."""
    def piece(m):
        if m["comment"]:
            return f"<i>{escape(m[0])}</i>"
        if m["word"] in KEYWORDS:
            return f"<b>{m[0]}</b>"
        where = names.get(m["word"])
        if where and m["word"] not in own:
            return f"<a href={where[0].link(page)}>{m[0]}</a>"
        return escape(m[0])
    return re.sub(r"""(?P<comment>/\*.*?(?:\*/|\Z)|//[^\n]*)|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|(?P<word>[A-Za-z_]\w*)|[<>&]""",
                  piece, text, flags=re.S)


def show_chunk(chunk):
    page, same = chunk.page, chunk.file.chunks[chunk.name]
    text = "".join(p if kind == "text" else f"\ue000{i}\ue001" for i, (kind, p) in enumerate(chunk.pieces))
    shown = code(text.rstrip("\n"), page, chunk.defines)

    def use(m):
        name = chunk.pieces[int(m[1])][1]
        return f'<a class=u href=#{chunk.file.chunks[name][0].id}>{chunk_name(name)}</a>'
    shown = re.sub(r"\ue000(\d+)\ue001", use, shown)
    n, links = same.index(chunk), []
    path, line = chunk.file.outline.get(chunk.number, ("", 0))
    if n > 0:
        links.append(f'<a href=#{same[n - 1].id}>before</a>')
    if n + 1 < len(same):
        links.append(f'<a href=#{same[n + 1].id}>goes on</a>')
    if n == 0:
        users = {c.id: c for c in chunk.file.uses.get(chunk.name, [])}
        links += [f'in <a href=#{c.id}>{chunk_name(c.name)}</a>' for c in users.values()]
    head = (f'<cite>{chunk_name(chunk.name)}</cite>{"+" if n else ""}≡ <small>{path}{f":{line}" if line else ""}'
            + "".join(" · " + link for link in links) + "</small>")
    kind = 'class="k contract"' if path.endswith(".h") else "class=k"
    blank = len(text) - len(text.rstrip("\n"))
    pre = f'<pre{f" data-end={blank}" if blank != 1 else ""}>{shown}\n</pre>'
    own = re.fullmatch(r"\[\[.*/.*\]\]", chunk.name)
    if not chunk.folded and (chunk.mark == "hidden" or own and chunk.mark != "shown"):
        return f"<details {kind} id={chunk.id}><summary>{head}</summary>{pre}</details>"
    return f"<div {kind} id={chunk.id}><p>{head}</p>{pre}</div>"


def exhibit(page, text, at):
    path, at = braced(text, at)
    name, at = braced(text, at)
    lines = Path(path).read_text().split("\n")
    head = re.compile(rf"^(TEST|LOOP|LOOP_BY_TENS)\({name}[,)]|^[A-Za-z].*[ *]{name}\(.*[^;]$")
    first = next(i for i, line in enumerate(lines) if head.match(line))
    last = next(i for i in range(first, len(lines)) if lines[i].startswith("}"))
    while re.match(r"(/\*| \*)", lines[first - 1]):
        first -= 1
    sentence = name.replace("_", " ")
    return block(lambda: f'<div class="k exhibit"><p><em>{sentence[0].upper() + sentence[1:]}</em> <small>{path}:{first + 1}</small></p>'
                    f"<pre>{code(chr(10).join(lines[first:last + 1]), page)}\n</pre></div>"), at


Page.do_exhibit = exhibit


class File:
    """A chapter's file: its chunks in order, who uses them, and its stream of prose and tokens."""

    def __init__(self, page, name):
        self.page, self.name, self.chunks, self.uses = page, name, {}, {}
        self.outline = {}
        for line in (WORK / f"{name}.outline").read_text().splitlines():
            number, path, start, _ = line.split()
            self.outline.setdefault(number, (path, int(start)))
        text, chunk, quote, folded, mark, stream = "", None, None, False, "", []
        for line in (WORK / f"{name}.markup").read_text().split("\n"):
            key, _, rest = line.partition(" ")
            if key == "@begin" and rest.startswith("code"):
                chunk = Chunk(page, self, rest[5:])
                last = text.rstrip("\n").rsplit("\n", 1)[-1]
                chunk.mark, chunk.folded = last[2:] if last.startswith("% ") else "", folded
                stream.append(text)
                text = ""
            elif key == "@end" and chunk:
                chunk.pieces = chunk.pieces[1:]  # the newline behind the name
                stream.append(block(lambda c=chunk: show_chunk(c)))
                chunk = None
            elif key == "@defn":
                chunk.name = rest
                self.chunks.setdefault(rest, []).append(chunk)
                if path := re.fullmatch(r"\[\[(.*/.*)\]\]", rest):
                    roots[path[1]] = chunk
            elif key == "@index" and rest.startswith("defn "):
                chunk.defines.append(rest[5:])
                names.setdefault(rest[5:], []).append(chunk)
            elif key == "@use":
                chunk.pieces.append(("use", rest))
                self.uses.setdefault(rest, []).append(chunk)
            elif key == "@quote":
                quote = ""
            elif key == "@endquote":
                text += token(Quote(quote, page))
                quote = None
            elif key in ("@text", "@nl"):
                piece = "\n" if key == "@nl" else rest
                if chunk:
                    chunk.pieces.append(("text", piece))
                elif quote is not None:
                    quote += piece
                else:
                    text += piece
                    if key == "@nl":
                        at = text.rfind("\n", 0, -1) + 1
                        if fold := re.match(r"% folded: (.*)", text[at:]):
                            title = fold[1][0].upper() + fold[1][1:]
                            text = text[:at] + block(FOLD) + title + block("</summary>")
                            folded = True
                        elif text[at:] == "% unfolded\n":
                            text = text[:at] + block("</details>")
                            folded = False
        self.text = "".join(stream) + text


class Quote:
    """Code in a line of prose, [[...]]."""

    def __init__(self, text, page):
        self.text, self.page = text, page

    def __call__(self):
        root = roots.get(self.text)
        inner = f'<a href="{root.link(self.page)}">{escape(self.text)}</a>' if root else code_quote(self.text, self.page)
        return f"<code>{inner}</code>"


def code_quote(text, page):
    return re.sub(r"<b>(\w+)</b>", r"\1", code(text, page))
