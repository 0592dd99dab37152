"""What the search of the browser edition looks through, search-index.js: a line
for each heading, passage, caption and chunk, with where it is. The lines are
deflated, so that the whole text of the book takes a few hundred kilobytes."""
import base64, re, zlib
from html.parser import HTMLParser
from chunks import names

WITHOUT = ("names.html", "subjects.html")  # lists of what other pages say


def mark_passages(html):
    """An id for each paragraph that has none to be found by: a caption, an exercise."""
    count = iter(range(1, 10_000))
    return re.sub(r'<figure.*?</figure>|<div class="exercise"[^>]*><span class="number">[^<]*</span>\s*<p>|<p>(?!<cite>|<math display)',
                  lambda m: f'<p id="p{next(count)}">' if m[0] == "<p>" else m[0], html, flags=re.S)


class Passages(HTMLParser):
    """The text of a page, cut at the ids where a reader can be sent."""

    def __init__(self, html):
        super().__init__()
        self.found, self.skipped, self.depth, self.number = [], None, 0, False
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        kind, mark = given.get("class") or "", given.get("id") or ""
        if self.skipped:
            self.depth += tag == self.skipped
        elif (tag == "pre" and kind != "transcript" or tag in ("svg", "small") or given.get("display") == "block"
              or kind in ("contents", "files")):
            self.skipped, self.depth = tag, 1
        else:
            self.number = tag == "span" and kind == "number"
            if tag == "figcaption":  # it comes first, with its number
                self.within, self.found[-1][1] = self.found[-1][1], ""
            if re.fullmatch(r"top|[A-Zbfpstux]\d+[a-z]?", mark):
                self.found.append([mark, ""])
            elif self.found and tag in ("p", "li", "td", "th", "pre", "summary"):
                self.found[-1][1] += " "

    def handle_endtag(self, tag):
        if tag == "figcaption":
            self.found[-1][1] += self.within
        if self.skipped:
            self.depth -= tag == self.skipped
            self.skipped = self.skipped if self.depth else None
        elif self.found and self.number:
            self.found[-1][1] += " "
            self.number = False

    def handle_data(self, data):
        if self.found and not self.skipped:
            self.found[-1][1] += data


def write_index(pages, path):
    defined = {}
    for name, chunks in sorted(names.items()):
        for chunk in chunks:
            defined.setdefault((chunk.page, chunk.id), []).append(name)
    lines = []
    for page in pages:
        if page.name in WITHOUT:
            continue
        lines.append(">" + page.name)
        for mark, text in Passages(page.html).found:
            text = " ".join(text.split()).removesuffix(" hint").removesuffix(" solution")
            here = defined.get((page, mark), [])
            if mark[0].isupper():
                text = text.split("≡")[0].strip(" +")
            if text:
                lines.append("\t".join([mark, text, *here]))
    packed = base64.b64encode(zlib.compress("\n".join(lines).encode(), 9)).decode()
    path.write_text(f'searchIndex("{packed}");\n')
