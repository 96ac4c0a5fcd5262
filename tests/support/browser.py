"""Pages as headless Chromium shows them: what a page saw of itself, and its printed pages."""

from __future__ import annotations

import html
import json
import re
import subprocess

_HEIGHT = 16_000
_FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--enable-logging=stderr",
]  # fmt: skip
# Errors, what was fetched or refused, whether anything sticks out to the side, and which charts
# were drawn: every one, wherever it stands, for all that is folded is opened first.
_WATCH = """<script>window.seen=[];
addEventListener('error',e=>seen.push(e.message));addEventListener('unhandledrejection',e=>seen.push(String(e.reason)));
document.addEventListener('securitypolicyviolation',e=>seen.push('refused '+e.blockedURI))</script>"""
_TELL = """<script>{const tell=()=>document.title=JSON.stringify({errors:seen,
fetched:performance.getEntriesByType('resource').map(e=>e.name).filter(n=>!n.startsWith('data:')),
wide:document.documentElement.scrollWidth-innerWidth,drawn:document.querySelectorAll('figure.drawn').length,
figures:document.querySelectorAll('figure').length,
paper:getComputedStyle(document.body).backgroundColor,
clipped:[...document.querySelectorAll('.drawn .live')].filter(e=>e.getBoundingClientRect().right>innerWidth+1).length});
document.querySelectorAll('details').forEach(d=>d.open=true);tell();setInterval(tell,50)}</script>"""


_BUDGETS_MS = (4_000, 20_000, 100_000)
"""Of the page's own time.

A busy machine draws fewer frames in it, and a chart is drawn in the first that shows it.
"""
LEAST_WIDTH = 500
"""A window is no narrower."""


def watch(text, folder, *, width, is_dark=False):
    """Return what the page `text` saw of itself in a window `width` wide, and what it said on the
    console.
    """
    page = folder / "watched.html"
    watched = text.replace("<head>", f"<head>{_WATCH}", 1).replace("</body>", f"{_TELL}</body>")
    page.write_text(watched if width >= LEAST_WIDTH else framed(watched, width), encoding="utf-8")
    scheme = f"--blink-settings=preferredColorScheme={0 if is_dark else 1}"
    # As high as the page, so that each chart is in sight, and is drawn.
    size = f"--window-size={max(width, LEAST_WIDTH)},{_HEIGHT}"
    for budget in _BUDGETS_MS:
        done = _chromium(
            folder, scheme, size, f"--virtual-time-budget={budget}", "--dump-dom", page
        )
        said = re.findall(r'CONSOLE[^"]*"(.*?)", source', done.stderr)
        found = json.loads(
            re.search(r"<title>(.*?)</title>", done.stdout)[1].replace("&amp;", "&")
        ) | {"said": said}
        if found["drawn"] == found.pop("figures"):
            break
    return found


def height_above(text, folder, selector, *, width):
    """Return how far below the top of the page `text` the first element of `selector` begins, in
    pixels.
    """
    told = f"setInterval(()=>document.title=document.querySelector('{selector}').getBoundingClientRect().top+scrollY,50)"
    page = folder / "measured.html"
    seen = text.replace("</body>", f"<script>{told}</script></body>")
    page.write_text(seen if width >= LEAST_WIDTH else framed(seen, width), encoding="utf-8")
    size = f"--window-size={max(width, LEAST_WIDTH)},{_HEIGHT}"
    done = _chromium(folder, size, f"--virtual-time-budget={_BUDGETS_MS[0]}", "--dump-dom", page)
    return float(re.search(r"<title>([0-9.]+)</title>", done.stdout)[1])


def framed(text, width):
    """Return a page that shows `text` in a frame `width` wide, as narrow as a phone, and has its
    title.
    """
    inside = text.replace("&", "&amp;").replace('"', "&quot;")
    frame = (
        f'<iframe width="{width}" height="{_HEIGHT}" style="border:0" srcdoc="{inside}"></iframe>'
    )
    told = (
        "setInterval(()=>document.title=document.querySelector('iframe').contentDocument.title,50)"
    )
    return (
        '<!doctype html><html><head><meta charset="utf-8"><title>{}</title></head><body'
        f' style="margin:0">{frame}<script>{told}</script></body></html>'
    )


def shown(url, folder):
    """Return what the page at `url` has become after half a minute of its own time."""
    return _chromium(folder, "--virtual-time-budget=30000", "--dump-dom", url).stdout


def printed_pages(text, folder):
    """Return how many sheets the page `text` is on paper."""
    page, target = folder / "printed.html", folder / "printed.pdf"
    page.write_text(text, encoding="utf-8")
    _chromium(folder, "--no-pdf-header-footer", f"--print-to-pdf={target}", page)
    return len(re.findall(rb"/Type\s*/Page\b", target.read_bytes()))


def _chromium(folder, *arguments):
    *flags, page = arguments
    profile = f"--user-data-dir={folder / 'profile'}"
    return subprocess.run(
        ["chromium", *_FLAGS, profile, *flags, page if isinstance(page, str) else page.as_uri()],
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip


def evaluated(text, folder, expression):
    """Return the value of the JavaScript `expression` once the page `text` has run its scripts."""
    told = f"document.title=JSON.stringify({expression})"
    page = folder / "evaluated.html"
    page.write_text(
        text.replace("</body>", f"<script>{{{told}}}</script></body>"), encoding="utf-8"
    )
    done = _chromium(folder, f"--virtual-time-budget={_BUDGETS_MS[0]}", "--dump-dom", page)
    return json.loads(html.unescape(re.search(r"<title>(.*?)</title>", done.stdout)[1]))
