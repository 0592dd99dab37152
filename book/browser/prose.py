"""TeX to what pandoc understands. Paragraphs, lists and formulas are left to it;
all else waits in tokens until it is done, QZ12Q in a line and QZ12B on a line of
its own: captions, tables, references, numbers. A page converts its text from
front to back, so it counts as TeX does."""
import html, re, subprocess, sys
from pathlib import Path
from pictures import Picture

WORK, OUT = Path(sys.argv[1]), Path(sys.argv[2])
STYLE = Path("book/style.tex").read_text()
FOLD = '<details class="fold"><summary>'
TINTS = {"ranka": "a", "rankb": "b", "rankc": "c", "rankd": "d", "accent": "accent"}
SCAN = re.compile(r"\\(?P<env>begin|end)\{(?P<of>[a-zA-Z]+)\*?\}|(?P<display>\\\[)|\\(?P<macro>[a-zA-Z@]+)\*? ?|"
                  r"\\(?P<thick>;)|QZ(?P<fold>\d+)B|(?P<math>\$(?:[^$\\]|\\.)+\$)|\\.|(?P<comment>%[^\n]*\n?[ \t]*)")
tokens, labels, pictures, subjects = [], {}, [], {}
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


SPACES = {"quad": "\u2003", "qquad": "\u2003\u2003", "enspace": "\u2002", "textdagger": "†"}
DROPPED = dict.fromkeys("""centering nopagebreak lining small footnotesize scriptsize RaggedRight raggedcolumns bigskip medskip smallskip
    noindent leavevmode hfill par indent strut normalfont makeatletter makeatother""".split(), 0) | dict.fromkeys(
    "vspace needspace color vphantom".split(), 1) | {"setlength": 2}  # macros, and how many arguments go with them
WRAPPED = {"question": (block, '<div class="question">', "</div>"), "hint": (block, '<details class="hint"><summary>hint</summary>', "</details>"),
           "solution": (block, '<details class="hint"><summary>solution</summary>', "</details>"),
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
        self.here, self.macros, self.files = None, {}, []
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
            elif m["thick"]:
                made = "\u2005"
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

    def do_explore(self, text, at):
        situation, at = braced(text, at)
        words, at = self.argument(text, at)
        if not (OUT / "explorer.html").exists():
            return words, at
        link = f'<a class="explore" title="in the plan explorer" href="explorer.html#{escape(situation)}">'
        return ("" if words else " ") + token(link) + (words or "in the explorer") + token("</a>"), at

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

    def coloured(self, text, at):
        colour, at = braced(text, at)
        inner, at = self.argument(text, at)
        return token(f'<span class="{TINTS.get(colour, "muted")}">') + inner + token("</span>"), at
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
        body = re.sub(r"^\[.*\]|QZ(\d+)Q", lambda m: f"[[{tokens[int(m[1])].text}]]" if m[1] else "", body)
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
