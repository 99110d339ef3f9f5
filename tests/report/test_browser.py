"""Pages in a real browser: nothing is asked for, nothing goes wrong, and a phone need not scroll sideways."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from alltokens.report.run_page import run_page
from alltokens.train.trainer import train

from ..train.test_trainer import silent
from ..train.toy_runs import MACHINE, toy_config, toy_data
from .toy_pages import toy_answers, toy_reports, toy_run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here; install it to see pages as a browser does"),
]

# A window has a least width, a frame has not; being of the same origin, it can be measured from outside.
FRAME = """<!doctype html>
<iframe id="frame" style="width: {width}px; height: 800px; border: 0" srcdoc="{page}"></iframe>
<pre id="found"></pre>
<script>
addEventListener("load", () => {{
  const inside = frame.contentWindow, root = inside.document.documentElement;
  found.textContent = JSON.stringify({{
    width: root.clientWidth,
    needed: root.scrollWidth,
    loaded: inside.performance.getEntriesByType("resource").map((entry) => entry.name),
    images: [...inside.document.images].map((image) => image.complete && image.naturalWidth > 0),
    ground: inside.getComputedStyle(inside.document.body).backgroundColor,
    ink: inside.getComputedStyle(inside.document.body).color,
  }});
}});
</script>"""


def browse(page: str, folder: Path, width: int = 1200, dark: bool = False) -> dict:
    """What a browser finds on a page, and what it complains of."""
    path = folder / "frame.html"
    path.write_text(FRAME.format(width=width, page=html.escape(page)))
    command = [
        str(CHROMIUM),
        *"--headless --no-sandbox --disable-gpu --enable-logging=stderr --dump-dom --virtual-time-budget=3000".split(),
        f"--user-data-dir={folder / 'profile'}",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        "--window-size=1400,900",
        path.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr
    return json.loads(html.unescape(found.group(1))) | {"complaints": re.findall(r"CONSOLE.*", done.stderr)}


def pages(folder: Path) -> dict[str, str]:
    """Pages of several shapes, one of them of a run that was trained."""
    train(toy_config(toy_data(folder)), folder / "run", MACHINE, silent)
    few = toy_run([f"a rather long name {number}" for number in range(30)], images=90)
    many = toy_run(["w" * 200, *(f"class {number}" for number in range(400))], images=802)
    return {
        "trained": (folder / "run" / "report.html").read_text(),
        "few classes": run_page(few, toy_reports(300), toy_answers(few)),
        "many classes": run_page(many, toy_reports(1), toy_answers(many)),
    }


def test_pages_open_without_a_complaint_or_a_request_and_fit_a_phone(tmp_path: Path):
    for name, page in pages(tmp_path).items():
        for width in (390, 1200):
            found = browse(page, tmp_path, width)
            assert found["complaints"] == [], name
            assert all(loaded.startswith("data:") for loaded in found["loaded"]), name
            assert found["images"], name
            assert all(found["images"]), name
            assert found["needed"] <= found["width"] <= width, (name, width)


def test_a_dark_page_is_dark(tmp_path: Path):
    run = toy_run(["cat", "dog"])
    page = run_page(run, toy_reports(2), toy_answers(run))

    def brightness(colour: str) -> int:
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    light, dark = browse(page, tmp_path), browse(page, tmp_path, dark=True)
    assert brightness(light["ground"]) > 600 > 200 > brightness(light["ink"])
    assert brightness(dark["ground"]) < 200 < 600 < brightness(dark["ink"])


def test_what_a_page_must_not_do_would_be_seen(tmp_path: Path):
    run = toy_run(["cat", "dog"])
    page = run_page(run, toy_reports(1), toy_answers(run))
    with_image = page.replace("</main>", '<img src="http://localhost:9/a.png"><p style="width: 3000px">wide</p></main>')
    found = browse(with_image, tmp_path, 390)
    assert any("Content Security Policy" in complaint for complaint in found["complaints"])
    assert found["needed"] > 390
