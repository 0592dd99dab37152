"""The pictures of the browser edition: LuaLaTeX sets each on a page of its size,
in two runs at a time, and pdftocairo makes SVG of it, which is cut down here to
what a screen shows. Glyphs are kept once a page."""
import re, subprocess, sys, threading

PICTURES = r"""\documentclass[11pt,twoside,openany]{memoir}
\input{style}
\InputIfFileExists{parts}{}{}
\makeatletter
% A picture on a page of its size: how wide its line is, and whether to crop it.
\newcommand\lrpicture[3]{\begingroup
    \ifnum#1=1 \advance\textwidth\lr@wide\fi
    \setbox0=\vbox{\hsize=\textwidth \linewidth=\hsize \columnwidth=\hsize \parindent=0pt \centering #3\par}%
    \count0=\directlua{local widest = 0
        for line in node.traverse_id(node.id("hlist"), tex.box[0].head) do widest = math.max(widest, (node.dimensions(line.head))) end
        tex.sprint(widest)}%
    \ifnum#2=0 \count0=\wd0 \fi
    \pagewidth=\dimexpr\count0 sp+4pt\relax \pageheight=\dimexpr\ht0+\dp0+4pt\relax
    \hoffset=\dimexpr-1in+2pt-(\wd0-\count0 sp)/2\relax \voffset=\dimexpr-1in+2pt\relax
    \shipout\box0 \endgroup}
\begin{document}
"""
lock = threading.Lock()


class Picture:
    """What is between the braces of a figure, and the SVG that becomes of it."""

    def __init__(self, page, body, wide=False):
        self.page, self.body, self.wide, self.before = page, body, wide, "".join(page.before)
        page.pictures += 1
        self.number = page.pictures

    def __call__(self):
        return self.svg


def typeset(pictures, plain, work, job):
    """Some pictures, from one run of LuaLaTeX; plain resolves what their TeX refers to."""
    (work / f"{job}.tex").write_text(PICTURES + "".join(
        f"{p.before}\\lrpicture{{{int(p.wide)}}}{{{int('hfill' not in p.body)}}}{{{plain(p.body)}}}\n" for p in pictures) + "\\end{document}\n")
    run = subprocess.run(["lualatex", "-interaction=nonstopmode", "-halt-on-error", "-file-line-error",
                          f"-output-directory={work}", f"{work}/{job}.tex"], capture_output=True, text=True)
    if run.returncode:
        sys.exit("site: LuaLaTeX stopped\n" + "\n".join(re.findall(r"^(?:[^ ]*:\d+: |! ).*(?:\n.*){6}", run.stdout, re.M)[:2]))
    for n, picture in enumerate(pictures, 1):
        made = subprocess.run(["pdftocairo", "-svg", "-f", str(n), "-l", str(n), work / f"{job}.pdf", "-"],
                              capture_output=True, text=True, check=True)
        picture.svg = slim(made.stdout, picture)


def relative(outline):
    """A glyph's outline in twenty-fifths of a point, each place from the one before."""
    out, here, start = "", (0, 0), (0, 0)
    for letter, given in re.findall("([MLCZ])([^MLCZ]*)", re.sub(r" ?M [^A-Z]*$", "", outline)):
        places = [round(float(v) * 25) for v in given.split()]
        out += letter.lower() + " ".join(str(v - here[i % 2]) for i, v in enumerate(places)).replace(" -", "-")
        here = tuple(places[-2:]) or start
        start = here if letter == "M" else start
    return out


def number(m):
    """As many digits as a screen shows."""
    if m[0].startswith("matrix"):
        return "matrix(" + ",".join(f"{float(v):.5g}" for v in m[0][7:-1].split(",")) + ")"
    value = float(m[0])
    shown = f"{value:.{1 if abs(value) >= 10 else 2}f}".rstrip("0").rstrip(".")
    return "0" if shown == "-0" else re.sub(r"^(-?)0\.", r"\1.", shown)


def slim(text, picture):
    """What pdftocairo said, in a third of the bytes; glyphs are kept once a page."""
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)
    glyphs, clips = picture.page.glyphs, {}
    with lock:
        found = {name: glyphs.setdefault(relative(outline), len(glyphs)) for name, outline in
                 re.findall(r'<symbol[^>]*id="(.*?)">\s*<path[^>]*\bd="(.*?)"/>\s*</symbol>', text)}
    text = re.sub(r"<symbol.*?</symbol>\s*", "", text, flags=re.S)
    text = re.sub(r'xlink:href="#(.*?)"', lambda m: f"href=#_{found[m[1]]}", text)
    text = re.sub(r"rgb\((.*?)%,(.*?)%,(.*?)%\)", lambda m: "#%02x%02x%02x" % tuple(round(float(v) * 2.55) for v in m.groups()), text)
    text = re.sub(r"(?:stroke-linecap:round|stroke-linejoin:round|stroke-miterlimit:10|fill-rule:nonzero|(?:fill|stroke)-opacity:1|stroke:none|fill:#000000);|"
                  r' clip-rule="nonzero"| style="(?=")', "", text)
    text = re.sub(r' style=""| id="surface\d+"', "", text)
    text = re.sub(r"matrix\(.*?\)|-?\d+\.\d+", number, text)
    text = re.sub(r' d="(.*?)"', lambda m: ' d="' + re.sub(r" ?([A-Z]) ?", r"\1", re.sub(r" (?=-)", "", m[1])).strip() + '"', text)
    for name, shape in re.findall(r'<clipPath id="(.*?)">\s*(.*?)\s*</clipPath>', text, re.S):
        clips.setdefault(shape, []).append(name)  # the same outline may be there many times
    first = {name: of[0] for of in clips.values() for name in of}
    text = re.sub(r'<clipPath id="(.*?)">.*?</clipPath>', lambda m: m[0] if first[m[1]] == m[1] else "", text, flags=re.S)
    text = re.sub(r"url\(#(clip\d+)\)", lambda m: f"url(#{first[m[1]]})", text)
    text = re.sub(r"(#|id=\")(clip|mask|pattern|surface|linear|radial|image|source)", rf"\g<1>p{picture.number}\2", text)
    text = re.sub(r"<g>\s*((?:<use[^>]*>\s*)*)</g>", r"\1", text)
    while (less := re.sub(r"(<g [^>]*>)((?:(?!</?g\b).)*)</g>\s*\1", r"\1\2", text, flags=re.S)) != text:
        text = less
    text = re.sub(r">\s+<", "><", re.sub(r"^.*?<svg[^>]*>", "", text, flags=re.S))
    # Neighbours that are moved alike are moved together.
    text = re.sub(r'<path [^>]*( transform="[^"]*")/>(?:<path [^>]*\1/>)+',
                  lambda m: f"<g{m[1]}>{m[0].replace(m[1], '')}</g>", text)
    text = text.replace("<defs><g></g></defs>", "").replace("<g></g>", "")
    width = float(size[1])
    return (f'<div class="scroll"><svg viewBox="0 0 {size[1]} {size[2]}" style="width:{width / 11.4:.1f}em;min-width:{width / 20:.1f}em" class="picture" aria-hidden="true">'
            + text + "</div>")
