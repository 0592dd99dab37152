#!/usr/bin/env python3
"""Turns the chapters into pages for a browser: book/site.py WORK OUT COMMIT DATE.
What noweb's markup says of a chapter is taken apart here. Paragraphs, lists and
formulas go through pandoc. All else waits in tokens (QZ12Q in a line, QZ12B on a
line of its own) until pandoc is done: chunks, captions, tables, numbers.
Pictures go through LuaLaTeX and come back as SVG (pictures.py)."""
import html, re, subprocess, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from pictures import Picture, typeset

WORK, OUT = Path(sys.argv[1]), Path(sys.argv[2])
BOOK = Path("book/book.tex").read_text()
STYLE = Path("book/style.tex").read_text()
KEYWORDS = set("".join(re.findall(r'"([^"]*)"', Path("book/c-pieces.awk").read_text().split("BEGIN")[1].split("words")[0])).split())
GREEK = {"ranka": "a", "rankb": "b", "rankc": "c", "rankd": "d", "accent": "accent"}
FOLD = '<details class="fold"><summary>'
tokens, labels, pictures, names, pages, subjects = [], {}, [], {}, [], {}
numbers = dict(re.findall(r"\\csname lr@(.*?)\\endcsname\{(.*)\}", (WORK / "numbers.tex").read_text()))
cited = re.findall(r"\\bibitem.*?\]\{([\w-]+)\}", (WORK / "site.bbl").read_text(), re.S)
escape = lambda text: html.escape(text, quote=False)


def token(what, kind="Q"):
    tokens.append(what)
    return f"QZ{len(tokens) - 1}{kind}"


def block(what):
    return f"\n\n{token(what, 'B')}\n\n"


def settle(text):
    """The text with what its tokens stand for."""
    text = re.sub(r"<p>(QZ\d+B)</p>", r"\1", text)
    found = lambda m: (lambda t: t() if callable(t) else t)(tokens[int(m[1])])
    while re.search(r"QZ\d+[BQ]", text):
        text = re.sub(r"QZ(\d+)[BQ]", found, text)
    return text


def braced(text, at):
    """What stands between the brace at or behind this place and its partner, and where that ends."""
    at = start = text.index("{", at)
    depth = 0
    while True:
        if text[at] == "\\":
            at += 1
        elif text[at] in "{}":
            depth += 1 if text[at] == "{" else -1
            if depth == 0:
                return text[start + 1:at], at + 1
        at += 1


def split(text, at):
    """The text cut at a separator that stands in no braces."""
    parts, depth, start, i = [], 0, 0, 0
    while i < len(text):
        if text.startswith(at, i) and depth == 0:
            parts.append(text[start:i])
            i = start = i + len(at)
            continue
        if text[i] == "\\":
            i += 1
        elif text[i] in "{}":
            depth += 1 if text[i] == "{" else -1
        i += 1
    return parts + [text[start:]]


# ---- chunks

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


def exhibit(path, name, page):
    lines = Path(path).read_text().split("\n")
    head = re.compile(rf"^(TEST|LOOP|LOOP_BY_TENS)\({name}[,)]|^[a-z].*[ *]{name}\(.*[^;]$")
    first = next(i for i, line in enumerate(lines) if head.match(line))
    last = next(i for i in range(first, len(lines)) if lines[i].startswith("}"))
    while re.match(r"(/\*| \*)", lines[first - 1]):
        first -= 1
    sentence = name.replace("_", " ")
    return lambda: (f'<div class="k exhibit"><p><em>{sentence[0].upper() + sentence[1:]}</em> <small>{path}:{first + 1}</small></p>'
                    f"<pre>{code(chr(10).join(lines[first:last + 1]), page)}\n</pre></div>")


class File:
    """A chapter's file: its chunks in order, who uses them, and its stream of prose and tokens."""

    def __init__(self, page, name):
        self.page, self.name, self.chunks, self.uses, self.all = page, name, {}, {}, []
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
                self.all.append(chunk)
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
        root = next((p.roots[self.text] for p in pages if self.text in p.roots), None)
        inner = f'<a href="{root.link(self.page)}">{escape(self.text)}</a>' if root else code_quote(self.text, self.page)
        return f"<code>{inner}</code>"


def code_quote(text, page):
    return re.sub(r"<b>(\w+)</b>", r"\1", code(text, page))


# ---- prose: TeX to what pandoc understands

SECOND = ["13-layers"]  # a chapter of a hundred pages goes on here, on a second page
SCAN = re.compile(r"\\(?P<env>begin|end)\{(?P<of>[a-zA-Z]+)\*?\}|(?P<display>\\\[)|\\(?P<macro>[a-zA-Z@]+)\*? ?|\\.|"
                  r"QZ(?P<fold>\d+)B|(?P<math>\$(?:[^$\\]|\\.)+\$)|(?P<comment>%[^\n]*\n?[ \t]*)")
SPACES = {"quad": "\u2003", "qquad": "\u2003\u2003", "enspace": "\u2002"}
DROPPED = dict.fromkeys("""centering nopagebreak lining small footnotesize scriptsize RaggedRight raggedcolumns normalsize bigskip medskip
    smallskip noindent leavevmode hfill par indent strut nobreak makeatletter makeatother""".split(), 0) | dict.fromkeys(
    "vspace needspace color vphantom".split(), 1) | {"setlength": 2}  # macros, and how many arguments go with them
WRAPPED = {"question": (block, '<div class="question">', "</div>"), "hint": (block, '<details class="hint"><summary>hint</summary>', "</details>"),
           "aside": (token, '<span class="aside">', "</span>"), "footnote": (token, '<span class="aside">', "</span>")}
BOXES = {"wide": "wide", "center": "center", "minipage": "half", "multicols": "columns"}

# Lua says here what it says in the volume.
(WORK / "say.lua").write_text("""said = "" tex = {sprint = function(text) said = said .. text end}
for line in io.lines() do said = "" assert(load(line))() print(said) io.flush() end""")
LUA = subprocess.Popen(["texlua", WORK / "say.lua"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


class Page:
    """One page: a chapter, or what stands before and behind them."""

    def __init__(self, name, number=None):
        self.name, self.number, self.title = name, number, ""
        self.counters = dict.fromkeys("section subsection figure table equation exercise".split(), 0)
        self.here, self.macros, self.files, self.roots, self.sections = None, {}, [], {}, []
        self.before, self.pictures, self.glyphs, self.part, self.opening = [], 0, {}, "", ""
        self.folded, self.folds = False, {}
        measured = STYLE.split("% ---- measured numbers")[1].split("\\input{numbers}")[0]
        for m in re.finditer(r"\\newcommand\{\\(\w+)\}", measured):
            self.define(m[1], measured, m.end())

    def second(self):
        """The page on which this chapter goes on; it counts on from here."""
        page = Page(self.name.replace(".", "b."), self.number)
        page.counters, page.macros, page.before = self.counters, self.macros, self.before
        page.opening = block(lambda: f'<h1 id="top"><span class="number">{self.number}</span>{self.title}, continued</h1>')
        return page

    def define(self, name, text, at):
        count = re.match(r"\[(\d)\]", text[at:])
        body, end = braced(text, at)
        self.macros[name] = (int(count[1]) if count else 0, re.sub(r"%.*\n\s*", "", body))
        return end

    def count(self, what, mark):
        """Numbers are the volume's. What it does not print is 5.3a, behind its 5.3."""
        self.folds[what] = self.folds.get(what, 0) + 1 if self.folded else 0
        self.counters[what] += not self.folded
        number = str(self.counters[what]) + (chr(96 + self.folds[what]) if self.folded else "")
        self.here = (self, mark + number, f"{self.number}.{number}" if self.number else "")
        return self.here[1]

    def convert(self, text):
        """Text with the macros that pandoc need not see replaced."""
        out, at = [], 0
        while m := SCAN.search(text, at):
            out.append(text[at:m.start()])
            at = m.end()
            name = (m["macro"] or "").replace("@", "_")
            act = m["env"] and getattr(self, f"{m['env']}_{m['of']}", None) or name and getattr(self, "do_" + name, None)
            if m["comment"] is not None:
                made = ""
            elif m["fold"]:
                what, made = tokens[int(m["fold"])], m[0]
                self.folded = what == FOLD or self.folded and what != "</details>"
            elif m["math"]:
                made = self.formula(m["math"])
            elif m["display"]:
                made, at = self.display(text, at)
            elif name in DROPPED:
                made = ""
                for _ in range(DROPPED[name]):
                    at = braced(text, at)[1]
            elif name in SPACES:
                made = SPACES[name]
            elif name in WRAPPED:
                kind, before, behind = WRAPPED[name]
                inner, at = self.argument(text, at)
                made = kind(before) + inner + kind(behind)
            elif act:
                made, at = act(text, at)
            elif m["of"] in BOXES:
                made = block(f'<div class="{BOXES[m["of"]]}">' if m["env"] == "begin" else "</div>")
                at += len(re.match(r"(?:\[\w\]|\{[\w.]*\})*", text[at:])[0])
            elif name in self.macros:
                made, at = self.expand(name, text, at)
                text, at, made = made + text[at:], 0, ""
            else:
                made = m[0]
            out.append(made)
        return "".join(out) + text[at:]

    def formula(self, text):
        """Mathematics: nothing but names of measured numbers and macros of this book are replaced."""
        text, at = re.sub(r"\\[Bb]ig([lr])\b", lambda m: "\\left" if m[1] == "l" else "\\right", text), 0
        while m := re.compile(r"\\([a-zA-Z@]+)").search(text, at):
            name, at = m[1].replace("@", "_"), m.end()
            if name in ("rounded", "lr_value", "directlua"):
                made, stop = getattr(self, "do_" + name)(text, at)
            elif name in self.macros:
                made, stop = self.expand(name, text, at)
            elif name == "lining":
                made, stop = "", at
            else:
                continue
            text, at = text[:m.start()] + made + text[stop:], m.start()
        return text

    def display(self, text, at):
        end = text.index("\\]", at)
        inner = self.formula(text[at:end])
        if tag := re.search(r"\\tag\{(.*?)\}", inner):
            return self.numbered(inner.replace(tag[0], ""), tag[1]), end + 2
        return f"\\[{inner}\\]", end + 2

    def numbered(self, inner, number, mark=""):
        return block(f'<div class="equation"{mark}>') + f"\\[{inner}\\]" + block(f"<span>({number})</span></div>")

    def expand(self, name, text, at):
        count, body = self.macros[name]
        given = []
        for _ in range(count):
            argument, at = braced(text, at)
            given.append(argument)
        return re.sub(r"#(\d)", lambda m: given[int(m[1]) - 1], body), at

    def argument(self, text, at):
        inner, at = braced(text, at)
        return self.convert(inner), at

    # definitions and computed numbers
    def do_newcommand(self, text, at):
        m = re.match(r"\{?\\(\w+)\}?", text[at:])
        start, at = at, self.define(m[1], text, at + m.end())
        self.before.append(f"\\makeatletter\\providecommand{text[start:at]}\\makeatother\n")
        return "", at
    do_providecommand = do_renewcommand = do_newcommand

    def do_directlua(self, text, at):
        body, at = braced(text, at)
        if "tex.sprint" not in body:
            self.before.append(f"\\directlua{{{body}}}\n")
        LUA.stdin.write(self.formula(body).replace("\\csstring\\%", "%").replace("\n", " ") + "\n")
        LUA.stdin.flush()
        return LUA.stdout.readline().strip(), at

    def do_lr_value(self, text, at):
        key, at = braced(text, at)
        return self.value(self.formula(key)), at

    def value(self, key):
        if key not in numbers:
            sys.exit(f"site: figures/data has no value {key}")
        return numbers[key]

    def do_rounded(self, text, at):
        digits, at = braced(text, at)
        parts = []
        for _ in range(3):
            part, at = braced(text, at)
            parts.append(self.formula(part))
        return f"{float(self.value('/'.join(parts))):,.{int(digits)}f}".replace(",", "{,}").replace("-", "\u2212"), at

    # structure
    def do_chapter(self, text, at):
        self.title_tex, at = self.argument(text, at)
        self.here = (self, "top", self.number)
        return block('<h1 id="top">' + (f'<span class="number">{self.number or self.part}</span>' if self.number or self.part else "")) + self.title_tex + block("</h1>"), at

    def head(self, level, text, at):
        inner, at = self.argument(text, at)
        if level == 2:
            mark = self.count("section", "s")
            number = f'<span class="number">{self.here[2]}</span>' if self.number else ""
        else:
            mark, number = self.count("subsection", "u"), ""
            self.here = (self, mark, f"{self.number}.{self.counters['section']}")
        return block(f'<h{level} id="{mark}">{number}') + inner + block(f"</h{level}>"), at

    def do_section(self, text, at):
        return self.head(2, text, at)

    def do_subsection(self, text, at):
        return self.head(3, text, at)

    def do_production(self, text, at):
        return self.head(2, "{In production}", 0)[0], at

    def do_paragraph(self, text, at):
        inner, at = self.argument(text, at)
        return "\n\n\\textbf{" + inner + "} ", at

    def do_texttt(self, text, at):
        inner, at = self.argument(text, at)
        page = re.fullmatch(r"build/site/(\w+\.html)", inner)
        if page and (OUT / page[1]).exists():
            return token(f'<a href="{page[1]}"><code>{page[1]}</code></a>'), at
        return "\\texttt{" + inner.replace("--", "-{}-") + "}", at

    def do_label(self, text, at):
        key, at = braced(text, at)
        labels[key] = self.here
        return "", at

    def do_ref(self, text, at):
        key, at = braced(text, at)
        def link():
            page, mark, number = labels[key]
            return f'<a href="{"" if page is self else page.name}#{mark}">{number}</a>'
        return token(link), at

    def do_cite(self, text, at):
        keys, at = braced(text, at)
        of = sorted(cited.index(key.strip()) + 1 for key in keys.split(","))
        return token("[" + ", ".join(f'<a href="bibliography.html#b{n}">{n}</a>' for n in of) + "]"), at

    def do_sub(self, text, at):
        entry, at = braced(text, at)
        mark = f"i{sum(map(len, subjects.values()))}"
        subjects.setdefault(entry, []).append(f'<a href="{self.name}#{mark}">{self.here[2] or self.title_tex}</a>')
        return token(f'<a id="{mark}"></a>'), at

    def do_exhibit(self, text, at):
        path, at = braced(text, at)
        name, at = braced(text, at)
        return block(exhibit(path, name, self)), at

    def coloured(self, text, at):
        colour, at = braced(text, at)
        inner, at = self.argument(text, at)
        return token(f'<span class="{GREEK.get(colour, "muted")}">') + inner + token("</span>"), at
    do_colorbox = do_textcolor = coloured

    def do_hspace(self, text, at):
        width, at = braced(text, at)
        return token(f'<span style="padding-left:{width}"></span>'), at

    def do_tabcolsep(self, text, at):
        return "", at + re.match(r"=[\d.]+pt", text[at:]).end()

    # environments
    def body(self, name, text, at):
        end = text.index(f"\\end{{{name}}}", at)
        return text[at:end], end + len(name) + 6

    def begin_center(self, text, at):
        body, end = self.body("center", text, at)
        return (self.picture(body), end) if "tikzpicture" in body else (block('<div class="center">'), at)

    def begin_transcript(self, text, at):
        body, end = self.body("transcript", text, at)
        body = re.sub(r"QZ(\d+)Q", lambda m: f"[[{tokens[int(m[1])].text}]]", body)
        return block(f'<pre class="transcript">{escape(body.strip(chr(10)))}\n</pre>'), end

    def do_VerbatimInput(self, text, at):
        path, at = braced(text, text.index("]", at))
        return block(f'<pre class="transcript">{escape(Path(path).read_text())}</pre>'), at

    def begin_exercises(self, text, at):
        """Those that the volume prints are numbered first, as there."""
        body, end = self.body("exercises", text, at)
        parts, folded, items = re.split(r"(\\item\b|QZ\d+B)", body), False, []
        for part in parts:
            if fold := re.match(r"QZ(\d+)B", part):
                what = tokens[int(fold[1])]
                folded = what == FOLD or folded and what != "</details>"
            elif part == "\\item":
                items.append(folded)
        order = iter([items[:i].count(f) + (items.count(False) if f else 0) + 1 for i, f in enumerate(items)])
        out, close = self.head(2, "{Exercises}", 0)[0], ""
        for part in parts:
            if part == "\\item":
                n = next(order)
                self.here = (self, f"x{n}", f"{self.number}.{n}")
                out += close + block(f'<div class="exercise" id="x{n}"><span class="number">{self.number}.{n}</span>')
                close = block("</div>")
            elif fold := re.match(r"QZ(\d+)B", part):
                if tokens[int(fold[1])] in (FOLD, "</details>"):
                    out, close = out + close, ""
                out += f"\n\n{part}\n\n"
            else:
                out += self.convert(part)
        return out + close, end

    def begin_equation(self, text, at):
        body, end = self.body("equation", text, at)
        mark = self.count("equation", "e")
        if key := re.search(r"\\label\{(.*?)\}", body):
            labels[key[1]] = self.here
            body = body.replace(key[0], "")
        return self.numbered(self.formula(body), self.here[2], f' id="{mark}"'), end

    def begin_align(self, text, at, name="align*"):
        body, end = self.body(name, text, at)
        return f"\\begin{{{name}}}{self.formula(body)}\\end{{{name}}}", end

    def begin_gather(self, text, at):
        return self.begin_align(text, at, "gather*")

    def begin_figure(self, text, at, what="figure"):
        body, end = self.body(what, text, at)
        body = re.sub(r"^\[[a-z!]*\]", "", body)
        mark = self.count(what, what[0])
        here, wide = self.here, "\\begin{wide}" in body
        start = body.index("\\caption")
        caption, stop = braced(body, start)
        body = body[:start] + body[stop:]
        for key in re.findall(r"\\label\{(.*?)\}", body + caption):
            labels[key] = here
        body = re.sub(r"\\label\{.*?\}|\\(begin|end)\{wide\}", "", body)
        caption = self.convert(re.sub(r"\\label\{.*?\}", "", caption))
        if re.search(r"tikzpicture|\\input\{figures|pgfplotstabletypeset|\\ifdim", body):
            inner = self.picture(body, wide)
        else:
            inner = self.convert(body)
        cls = ' class="wide"' if wide else ""
        return (block(f'<figure id="{mark}"{cls}>') + inner
                + block(f'<figcaption><span class="number">{what.capitalize()} {here[2]}</span>') + caption + block("</figcaption></figure>")), end

    def begin_table(self, text, at):
        return self.begin_figure(text, at, "table")

    def begin_tabular(self, text, at):
        spec, at = braced(text, at)
        body, end = self.body("tabular", text, at)
        spec = re.sub(r"[@!]\{(?:[^{}]|\{[^{}]*\})*\}", "", spec)
        code_columns, columns = [], []
        for m in re.finditer(r"(>\{[^}]*\})?([lcr]|[pm]\{[^}]*\})", spec):
            columns.append(m[2][0] if m[2][0] in "cr" else "l")
            code_columns.append("ttfamily" in (m[1] or ""))
        rows = [name for name, (_, made) in self.macros.items() if "&" in made]
        while m := rows and re.search(rf"\\({'|'.join(rows)})(?![a-zA-Z])", body):
            made, stop = self.expand(m[1], body, m.end())
            body = body[:m.start()] + made + body[stop:]
        head = body.find("\\midrule")
        rows = split(body, "\\\\")
        heads = len(split(body[:head], "\\\\")) - 1 if head >= 0 else 0
        heads = heads if heads <= 2 else 0
        out = [block('<div class="scroll"><table>')]
        for n, row in enumerate(rows):
            rule = " class=\"rule\"" if "\\midrule" in row and n != heads else " class=\"space\"" if "\\addlinespace" in row else ""
            row = re.sub(r"\\(top|mid|bottom)rule|\\addlinespace|\\cmidrule(\(.*?\))?\{.*?\}", "", row)
            if n == len(rows) - 1 and not row.strip():
                break
            out.append(block(f"<tr{rule}>"))
            column, tag = 0, "th" if n < heads else "td"
            for cell in split(row, "&"):
                span, align = 1, columns[min(column, len(columns) - 1)]
                if m := re.match(r"\s*\\multicolumn\{(\d+)\}\{(.*?)\}", cell):
                    span, align, cell = int(m[1]), re.sub("[^lcr]", "", re.sub(r"@\{.*?\}", "", m[2])) or "l", braced(cell, m.end())[0]
                tt = " tt" if code_columns[min(column, len(columns) - 1)] and tag == "td" else ""
                wide = f' colspan="{span}"' if span > 1 else ""
                out += [block(f'<{tag} class="{align}{tt}"{wide}>'), self.convert(cell.strip()), block(f"</{tag}>")]
                column += span
            out.append(block("</tr>"))
        return "".join(out) + block("</table></div>"), end

    def begin_tikzpicture(self, text, at):
        body, end = self.body("tikzpicture", text, at)
        return self.picture(f"\\begin{{tikzpicture}}{body}\\end{{tikzpicture}}"), end

    def picture(self, body, wide=False):
        pictures.append(Picture(self, body, wide))
        return block(pictures[-1])


def plain(body):
    """What TeX is to set in a picture: references are numbers, and code is code."""
    body = re.sub(r"\\ref\{(.*?)\}", lambda m: labels[m[1]][2], body)
    return re.sub(r"QZ(\d+)Q", lambda m: "\\code{}" + re.sub(r"([\\{}])", r"\\\1", tokens[int(m[1])].text) + "\\edoc{}", body)


# ---- pages

def pandoc(page):
    made = subprocess.run(["pandoc", "-f", "latex", "-t", "html5", "--mathml", "--wrap=none"], input=page.source,
                          capture_output=True, text=True, check=True)
    if made.stderr:
        sys.exit(f"site: {page.name}: {made.stderr}")
    text = re.sub(r'<annotation.*?</annotation>|</?semantics>| display="inline"| xmlns="http://www.w3.org/1998/Math/MathML"', "", made.stdout, flags=re.S)
    text = re.sub(r'<mstyle mathvariant="normal">((?:<mi>.</mi>)+)</mstyle>', lambda m: "<mtext>" + re.sub("</?mi>", "", m[1]) + "</mtext>", text)
    text = re.sub(r'</?mstyle[^>]*>|(?<=<mtext) mathvariant="normal"', "", text)
    # Parentheses in a line of prose need not grow.
    page.html = re.sub(r"<math>.*?</math>", lambda m: m[0].replace('stretchy="true"', 'stretchy="false"'), text, flags=re.S)


def finish(page):
    text = settle(page.html)
    text = re.sub(r"<(summary|h[123]|t[dh])([^>]*)>((?:<span class=\"number\">[^<]*</span>)?)\s*<p>(.*?)</p>\s*</\1>", r"<\1\2>\3\4</\1>", text, flags=re.S)
    page.html = re.sub(r"\n+(</?t[drh])", r"\1", text)
    page.title = re.search(r'<h1 id="top">(?:<span.*?</span>)?(.*?)</h1>', text, re.S)[1].strip()
    page.sections = re.findall(r'<h2 id="(.*?)">(.*?)</h2>', text, re.S)


def contents(page, every_section=False):
    out = ""
    for other in pages:
        number = f'<span class="number">{other.number}</span>' if other.number else ""
        kind = ' class="here"' if other is page else ' class="part"' if other.part else ""
        if not other.opening:
            out += f'<li{kind}><a href="{other.name}">{number}{other.title}</a></li>'
        if other.number and (every_section or other.number == page.number):
            out += "<li><ol>" + "".join(f'<li><a href="{"" if other is page else other.name}#{mark}">{title}</a></li>'
                                        for mark, title in other.sections) + "</ol></li>"
    return f'<ol class="contents">{out}</ol>'


def write(page):
    at = pages.index(page)
    turn = "".join(f'<a rel="{rel}" href="{pages[n].name}">{arrow[0]}{pages[n].title}{arrow[1]}</a>'
                   for rel, n, arrow in (("prev", at - 1, ("← ", "")), ("next", at + 1, ("", " →"))) if 0 <= n < len(pages))
    glyphs = '<svg class="glyphs"><defs>' + "".join(
        f'<path id="_{n}" transform="scale(.04)" d="{outline}"/>' for outline, n in page.glyphs.items()) + "</defs></svg>"
    (OUT / page.name).write_text(f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{re.sub("<.*?>", "", page.title)} · The Long Ring</title><link rel="stylesheet" href="site.css"></head>
<body{" class=part" if page.part else ""}><input type="checkbox" id="menu"><label for="menu">Contents</label>
<nav class="side"><a class="book" href="index.html">The Long Ring</a>{contents(page)}</nav>
{glyphs}<main data-files="{' '.join(file.name for file in page.files)}">{page.html}<nav class="turn">{turn}</nav></main>
<script>(window.onhashchange = () => {{
    for (let e = document.getElementById(location.hash.slice(1)); e; e = e.parentElement) if (e.tagName == "DETAILS") e.open = true
}})()</script></body></html>
""")


def text_of(page):
    page.roots = {c.name[2:-2]: c for file in page.files for c in file.all if re.fullmatch(r"\[\[.*/.*\]\]", c.name)}
    return page.opening + "".join(file.text for file in page.files) + block(lambda: files_of(page))


def files_of(page):
    return ('<div class="files"><p><em>The files of this chapter</em>, and their lines</p><ul>'
            + "".join(f'<li><a href="{root.link(page)}"><code>{path}</code></a> {len(Path(path).read_text().splitlines()):,}</li>'
                      for path, root in sorted(page.roots.items())) + "</ul></div>") if page.roots else ""


def names_page(page):
    out = ['<ul class="names">']
    for name, chunks in sorted(names.items()):
        out.append(f"<li><code>{name}</code> " + ", ".join(
            f'<a href="{c.link(page)}">{c.file.outline.get(c.number, (c.name, 0))[0].rsplit("/", 1)[-1]}</a>' for c in chunks) + "</li>")
    return "".join(out) + "</ul>"


def subject_index():
    """The entries of makeindex's kind, word!of it@as shown|see{other}, as TeX with links."""
    lines = {}
    for entry, places in subjects.items():
        entry, _, see = entry.partition("|")
        levels = [(word.partition("@")[0], word.partition("@")[2] or word) for word in entry.split("!")]
        for n in range(1, len(levels) + 1):
            key = tuple((re.sub(r"\W", " ", word).lower(), word) for word, _ in levels[:n])
            line = lines.setdefault(key, (n, levels[n - 1][1], []))
            if n == len(levels):
                line[2].extend(["\\emph{see} " + re.sub(r"see\{(.*)\}", r"\1", see)] if see else [token(", ".join(places))])
    return "".join(block(f'<div class="level{n}">') + " ".join([word, *rest]) + block("</div>") for _, (n, word, rest) in sorted(lines.items()))


def main():
    book = re.sub(r"% in the volume\n.*?% in a browser\n(.*?)% in both\n", lambda m: re.sub(r"(?m)^% ?", "", m[1]), BOOK, flags=re.S)

    front = Page("index.html")
    front.text = book[book.index("\\chapter{How"):book.index("\\fi\n\n\\mainmatter")]
    pages.append(front)
    parts = iter("I II III IV V VI".split())
    for m in re.finditer(r"\\chapterfile\{(\d+)\}\{(.*?)\}|\\morefile\{(\d.*?)\}|\\ringpart", book):
        if m[0] == "\\ringpart":
            title, at = braced(book, m.end())
            picture, at = braced(book, at)
            pages.append(page := Page(f"part-{title.lower().replace(' ', '-')}.html"))
            page.part = f"Part {next(parts)}"
            page.text = f"\\chapter{{{title}}}" + page.picture(picture) + braced(book, at)[0]
            continue
        pages.append(page := Page(f"{int(m[1]):02}.html" if m[1] else "A.html", m[1] or "A"))
        for name in (m[2] or m[3]).split(","):
            if name in SECOND:
                page.text = text_of(page)
                pages.append(page := page.second())
            page.files.append(File(page, name))
        page.text = text_of(page)
    for chunks in names.values():
        chunks.sort(key=lambda c: not c.file.outline.get(c.number, ("", 0))[0].endswith(".h"))

    back = book[book.index("\\backmatter"):]
    page = Page("invariants.html")
    page.text = re.split(r"\\chapter\{Hints|\\bibliographystyle", back[len("\\backmatter"):])[0]
    pages.append(page)
    page = Page("bibliography.html")
    page.text = "\\chapter{Bibliography}" + block('<ol class="references">')
    for n, item in enumerate(re.split(r"\\bibitem", (WORK / "site.bbl").read_text())[1:], 1):
        item = item[item.index("]{"):].split("}", 1)[1].replace("\\end{thebibliography}", "")
        page.text += block(f'<li id="b{n}">') + re.sub(r"\\newblock|\\penalty0", "", item) + block("</li>")
    page.text += block("</ol>")
    pages.append(page)
    page = Page("names.html")
    page.text = "\\chapter{Public names}" + block(lambda p=page: names_page(p))
    pages.append(page)
    ring = book[book.index("\\begin{tikzpicture}"):book.index("\\end{tikzpicture}")] + "\\end{tikzpicture}"

    front.text += "".join(re.findall(r"\\sub\{.*?\|see.*?\}\}", back))
    for page in pages:
        page.source = page.convert(page.text)
    if subjects:
        page = Page("subjects.html")
        page.source = page.convert("\\chapter{Subjects}" + block('<div class="names">') + subject_index() + block("</div>"))
        pages.insert(-1, page)
    pictures.append(title := Picture(front, ring))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda task: task(), [lambda n=n: typeset(pictures[n::2], plain, WORK, f"pictures-{n}") for n in (0, 1)]
                      + [lambda p=p: pandoc(p) for p in pages]))
    for page in pages:
        finish(page)
    front.title = "How to read this book"
    explorer = "" if not (OUT / "explorer.html").exists() else (
        '<p class="center"><a href="explorer.html">The plan explorer</a>: change a call, or break its plan, and see what the program says.</p>')
    front.html = ('<header class="title"><p class="book">The Long Ring</p><p><em>Context parallelism for million-token inference,<br>as a literate program in C</em></p>'
                  f'{title()}<p class="muted">{sys.argv[4]} · <code>{sys.argv[3]}</code></p></header>{explorer}'
                  f'<h2>Contents</h2>{contents(front, True)}' + front.html)
    for page in pages:
        write(page)
    print(f"build/site/index.html: {len(pages)} pages, {len(pictures)} pictures")


main()
