#!/usr/bin/env python3
"""The browser edition: book/browser/site.py WORK OUT COMMIT DATE turns the chapters,
as book/site has prepared them in WORK, into pages."""
import re, subprocess, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from chunks import File, names, roots
from pictures import Picture, typeset
from prose import OUT, WORK, Page, block, braced, pictures, plain, settle, subjects, token
from search import WITHOUT, mark_passages, write_index

SECOND = ["13-layers"]  # a chapter of a hundred pages goes on here, on a second page
# The glossary names pages, which a browser does not have.
BOOK = re.sub(r"(?s)% paper only.*?% end of paper only\n", "", Path("book/book.tex").read_text())
EXPLORER = '<p class="explorer"><a href="explorer.html">The plan explorer</a></p>' if (OUT / "explorer.html").exists() else ""
SEARCH = """<form class="search" role="search" autocomplete="off"><input type="search" aria-label="Search the book"
aria-controls="found" aria-keyshortcuts="/" placeholder="Search  /"><div><p role="status"></p><ol id="found"></ol></div></form>"""
pages = []


def pandoc(page):
    made = subprocess.run(["pandoc", "-f", "latex", "-t", "html5", "--mathml", "--wrap=none", "--verbose"], input=page.source,
                          capture_output=True, text=True, check=True)
    if lost := re.findall("Skipped.*|.WARNING.*", made.stderr):
        sys.exit("\n".join(f"site: {page.name}: {line}" for line in lost))
    text = re.sub(r'<annotation.*?</annotation>|</?semantics>| display="inline"| xmlns="http://www.w3.org/1998/Math/MathML"', "", made.stdout, flags=re.S)
    text = re.sub(r'<mstyle mathvariant="normal">((?:<mi>.</mi>)+)</mstyle>', lambda m: "<mtext>" + re.sub("</?mi>", "", m[1]) + "</mtext>", text)
    text = re.sub(r'</?mstyle[^>]*>|(?<=<mtext) mathvariant="normal"', "", text)
    text = re.sub(r"<mtext>(QZ.*?)</mtext>", r"<mtext><span>\1</span></mtext>", text)  # else a line each for code and words
    text = text.replace("\u2006", "\u202f")  # a thin space of TeX breaks no line
    # Parentheses in a line of prose need not grow.
    page.html = re.sub(r"<math>.*?</math>", lambda m: m[0].replace('stretchy="true"', 'stretchy="false"'), text, flags=re.S)


def finish(page):
    text = settle(page.html)
    text = re.sub(r"<(summary|h[123]|t[dh])([^>]*)>((?:<span class=\"number\">[^<]*</span>)?)\s*<p>(.*?)</p>\s*</\1>", r"<\1\2>\3\4</\1>", text, flags=re.S)
    text = re.sub(r"\n+(</?t[drh])", r"\1", text)
    page.html = text if page.name in WITHOUT else mark_passages(text)
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
<body{" class=part" if page.part else ""}><input type="checkbox" id="menu"><div class="bar"><label for="menu">Contents</label>{SEARCH}</div>
<nav class="side"><a class="book" href="index.html">The Long Ring</a>{contents(page)}{EXPLORER}</nav>
{glyphs}<main data-files="{' '.join(file.name for file in page.files)}">{page.html}<nav class="turn">{turn}</nav></main>
<script>(window.onhashchange = () => {{
    for (let e = document.getElementById(location.hash.slice(1)); e; e = e.parentElement) if (e.tagName == "DETAILS") e.open = true
}})()</script><script src="search.js"></script></body></html>
""")


def text_of(page):
    return page.opening + "".join(file.text for file in page.files) + block(lambda: files_of(page))


def labs_of(page):
    labs = re.findall(rf"(?m)^\| (\d\d-\S+) \|.*\| {page.number}\.\d+ \|$", Path("exercises/README.md").read_text())
    return "" if not labs else "; <em>its labs</em>: " + ", ".join(f"<code>{lab}</code>" for lab in labs)


def files_of(page):
    files = sorted((path, root) for path, root in roots.items() if root.page is page)
    return "" if not files else ('<div class="files"><p><em>The files of this chapter</em>, and their lines' + labs_of(page) + '</p><ul>' + "".join(
        f'<li><a href="{root.link(page)}"><code>{path}</code></a> {len(Path(path).read_text().splitlines()):,}</li>' for path, root in files) + "</ul></div>")


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
    parts, letters = iter("I II III IV V VI".split()), iter("ABC")
    for m in re.finditer(r"\\chapterfile\{(\d+)\}\{(.*?)\}|\\morefile\{(\d.*?)\}|\\ringpart", book):
        if m[0] == "\\ringpart":
            title, at = braced(book, m.end())
            picture, at = braced(book, at)
            pages.append(page := Page(f"part-{title.lower().replace(' ', '-')}.html"))
            page.part = f"Part {next(parts)}"
            page.text = f"\\chapter{{{title}}}" + page.picture(picture) + braced(book, at)[0]
            continue
        number = m[1] or next(letters)
        pages.append(page := Page(f"{number:0>2}.html" if m[1] else f"{number}.html", number))
        for name in (m[2] or m[3]).split(","):
            if name in SECOND:
                page.text = text_of(page)
                pages.append(page := page.second())
            page.files.append(File(page, name))
        page.text = text_of(page)
    for chunks in names.values():
        chunks.sort(key=lambda c: not c.file.outline.get(c.number, ("", 0))[0].endswith(".h"))

    back = book[book.index("\\backmatter"):]
    lists = re.split(r"\\chapter\{Hints|\\bibliographystyle", back)[0]
    for name, text in zip(("counts.html", "invariants.html"), re.split(r"(?=\\chapter\{)", lists)[1:]):
        pages.append(page := Page(name))
        page.text = text
    page = Page("bibliography.html")
    page.text = "\\chapter{Bibliography}" + block('<ol class="references">')
    for n, item in enumerate(re.split(r"\\bibitem", (WORK / "site.bbl").read_text())[1:], 1):
        item = item[item.index("]{"):].split("}", 1)[1].replace("\\end{thebibliography}", "")
        page.text += block(f'<li id="b{n}">') + re.sub(r"\\newblock|\\penalty0|\\natexlab", "", item) + block("</li>")
    page.text += block("</ol>")
    pages.append(page)
    page = Page("names.html")
    page.text = "\\chapter{Public names}Where each is declared and defined." + block(lambda p=page: names_page(p))
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
    front.html = ('<header class="title"><p class="book">The Long Ring</p><p><em>Context parallelism for million-token inference,<br>as a literate program in C</em></p>'
                  f'{title()}<p class="muted">{sys.argv[4]} · <code>{sys.argv[3]}</code></p></header>{EXPLORER}'
                  f'<h2>Contents</h2>{contents(front, True)}' + front.html)
    for page in pages:
        write(page)
    write_index(pages, OUT / "search-index.js")
    print(f"build/site/index.html: {len(pages)} pages, {len(pictures)} pictures")


main()
