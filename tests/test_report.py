"""The page of `remem report` in Chromium: sorted, searched, opened, walked through, compared, attacked, filled."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, sync_playwright

from remem_jax.observe.report import write_report
from tests.report_traces import HOSTILE, line, long_stories, story, write, write_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.needs_chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM)
        yield found
        found.close()


@pytest.fixture
def show(browser, tmp_path):
    """Opens the report of some paths at a size; the page may make no request and no error."""
    opened = []

    def show(*paths: Path, limit: int = 500, width: int = 1280, height: int = 900, scheme="light") -> Page:
        out, _ = write_report(paths, tmp_path / "report.html", limit=limit)
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        page.set_default_timeout(10_000)
        faults: list[str] = []
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: faults.append(request.url) if request.url != out.as_uri() else None)
        page.goto(out.as_uri())
        page.wait_for_selector("html[data-ready]")
        opened.append((page, faults))
        return page

    yield show
    for page, faults in opened:
        page.close()
        assert faults == []


@pytest.fixture
def two_agents(tmp_path) -> tuple[Path, Path]:
    """Traces of two agents on the same questions; b's answers differ and it plays one more question."""
    first = write(
        tmp_path / "a.jsonl",
        [
            *story("Where is the harbour?", "York"),
            *story("Who built the pier?", "Rome", gold="Ada", turns=5),
            *story("Apples or pears?", None, turns=4, rollout=3),
        ],
    )
    second = write(tmp_path / "b.jsonl", [*story("Where is the harbour?", "Rome"), *story("Only for b?", "York")])
    return first, second


def column(page: Page, key: str) -> list[str]:
    return page.locator(f"tbody .c-{key}").all_inner_texts()


def heading(page: Page) -> str:
    return page.locator("#one h2").inner_text()


def current(pane: Page | Locator) -> str:
    return pane.locator('.turns [aria-current="true"] b').inner_text()


def test_columns_sort_both_ways_and_unknown_values_come_last(show, tmp_path):
    stories = (
        story("Where?", "York"),
        [line("Unfinished?", 0)],
        story("Built?", "Rome", turns=5),
        story("Ada?", None, turns=4),
    )
    page = show(write(tmp_path / "t.jsonl", [turn for one in stories for turn in one]))
    questions = ["Where?", "Unfinished?", "Built?", "Ada?"]
    assert column(page, "question") == questions and column(page, "turns") == ["4", "1", "6", "5"]
    page.click('[data-sort="turns"]')
    assert column(page, "turns") == ["6", "5", "4", "1"]
    assert page.locator('th[aria-sort="descending"]').inner_text() == "Turns\u00a0↓"
    page.click('[data-sort="turns"]')
    assert column(page, "turns") == ["1", "4", "5", "6"]
    page.click('[data-sort="question"]')
    assert column(page, "question") == sorted(questions)
    page.set_viewport_size({"width": 390, "height": 844})  # without a head of the table
    page.select_option(".narrow select", "f1 down")
    assert page.locator("tbody .c-f1").all_text_contents() == ["1", "0", "0", ""]
    page.select_option(".narrow select", "f1 up")
    assert page.locator("tbody .c-f1").all_text_contents() == ["0", "0", "1", ""]


def test_search_and_filters_leave_what_fits_and_count_it(show, two_agents):
    page = show(*two_agents)
    counted = page.locator(".counted")
    assert counted.inner_text() == "5 of 5 trajectories, 2 of 5 right"
    page.fill("input[type=search]", "HARBOUR rome")
    assert column(page, "answer") == ["Rome"] and column(page, "source") == ["B: b.jsonl"]
    page.fill("input[type=search]", "")
    page.select_option('[aria-label="Show "]', "wrong")
    assert column(page, "answer") == ["Rome", "(no answer)", "Rome"] and column(page, "em") == ["✗ wrong"] * 3
    page.select_option('[aria-label="Agent "]', "1")
    assert counted.inner_text() == "1 of 5 trajectories, 0 of 1 right"
    page.fill("input[type=search]", "nothing like it")
    assert counted.inner_text() == "No trajectory fits the search and filters." and column(page, "answer") == []


def test_keys_open_a_trajectory_walk_through_turns_and_trajectories_and_come_back(show, two_agents):
    page = show(two_agents[0])
    page.focus("input[type=search]")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert heading(page) == "Who built the pier?" and not page.is_visible("#list")
    assert current(page) == "chunk 1"
    seen = []
    for _ in range(7):
        seen.append(current(page))
        page.keyboard.press("ArrowRight")
    assert seen == ["chunk 1", "chunk 2", "chunk 3", "chunk 4", "chunk 5", "answer", "answer"]
    page.keyboard.press("ArrowLeft")
    assert current(page) == "chunk 5"
    page.keyboard.press("j")
    assert heading(page) == "Apples or pears?" and current(page) == "chunk 1"
    page.keyboard.press("ArrowDown")  # there is no further one
    page.keyboard.press("ArrowUp")
    page.keyboard.press("k")
    assert heading(page) == "Where is the harbour?"
    page.keyboard.press("Escape")
    assert page.is_visible("#list") and not page.is_visible("#one")
    assert page.evaluate("document.activeElement.textContent") == "Where is the harbour?"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"


def test_a_turn_shows_what_changed_what_was_recalled_gold_words_and_rewards(show, two_agents):
    page = show(two_agents[0])
    page.click("text=Where is the harbour?")
    page.keyboard.press("ArrowRight")
    memory = page.locator(".block.memory")
    assert memory.locator("del").all_inner_texts() == ["old York 0"]
    assert memory.locator("ins").all_inner_texts() == ["Rome 1"]
    assert memory.locator("del mark").all_inner_texts() == ["York"]
    signs = "(tag) => getComputedStyle(document.querySelector(`.block.memory ${tag}`), '::before').content"
    assert [page.evaluate(signs, tag) for tag in ("ins", "del")] == ['"+"', '"−"']
    callback = page.locator(".block.callback")
    assert "where Ada lives" in callback.inner_text()
    assert "finds the memory of chunk 1, score 0.67" in callback.inner_text()
    assert callback.locator(".found .text").inner_text() == "Ada lives in old York 0"
    assert callback.locator(".found mark").all_inner_texts() == ["York"]
    rewards = page.locator(".rewards div").all_inner_texts()
    assert [one.split("\n") for one in rewards] == [
        ["memory gain", "0"], ["callback gain", "0.5"], ["format", "1"], ["state reward", "1"], ["advantage", "−0.25"],
    ]  # fmt: skip
    page.keyboard.press("ArrowRight")
    assert "of chunk 1, score 0.67, asked for in chunk 2" in page.locator(".block.recalled").inner_text()
    assert page.locator(".block", has_text="In chunk 2 Ada left").locator("mark").all_inner_texts() == ["York"]


def test_an_arc_leads_from_the_turn_that_asked_to_the_turn_whose_memory_it_recalled(show, two_agents):
    page = show(two_agents[0])
    page.click("text=Where is the harbour?")
    assert page.locator(".arcs title").all_text_contents() == ["chunk 2 recalls the memory of chunk 1"]
    boxes = [page.locator(".turns li").nth(at).bounding_box() for at in range(2)]
    head, arc = (page.locator(selector).bounding_box() for selector in (".arc.head", ".arc:not(.head)"))
    assert all(boxes) and head and arc
    first, second = ((box["x"], box["x"] + box["width"]) for box in boxes if box)
    assert first[0] < head["x"] < head["x"] + head["width"] < first[1], "the head is above chunk 1"
    assert second[0] < arc["x"] + arc["width"] < second[1], "the arc begins above chunk 2"


def test_invalid_and_cut_turns_are_flagged_in_words(show, tmp_path):
    bad = {"valid": False, "reason": "two_memories", "ended": False, "memory_cut": True}
    turns = [line("q", 0, **bad), line("q", 1, final=True, valid=False, answer=None)]
    page = show(write(tmp_path / "t.jsonl", turns))
    assert column(page, "flags") == ["! 2 invalid, ! 1 cut"]
    page.click("button.open")
    assert page.locator(".turns .flag").all_inner_texts() == ["! invalid, ! reply cut, ! memory cut", "! no single box"]
    assert page.locator(".detail .tag").all_inner_texts() == [
        "! invalid reply (two memories): the memory stays", "! reply cut at its limit", "! memory cut at its limit",
    ]  # fmt: skip


def test_two_agents_stand_side_by_side_on_the_same_question(show, two_agents):
    page = show(*two_agents)
    page.click("text=Where is the harbour? >> nth=0")
    panes = page.locator(".pane")
    assert [one.split("\n")[0][:10] for one in panes.all_inner_texts()] == ["A: a.jsonl", "B: b.jsonl"]
    assert panes.locator(".answer").all_inner_texts() == ["Answer: York ✓ right", "Answer: Rome ✗ wrong"]
    left, other = (panes.nth(at).bounding_box() for at in (0, 1))
    assert left and other and left["x"] + left["width"] <= other["x"] and left["y"] == other["y"]
    page.keyboard.press("End")
    assert [current(panes.nth(at)) for at in (0, 1)] == ["answer", "answer"]
    page.select_option('[aria-label="Beside it: "]', "")
    assert panes.count() == 1
    page.keyboard.press("Escape")
    page.click("text=Only for b?")
    assert panes.count() == 1 and page.locator("#one select").count() == 0


def test_hostile_texts_show_as_text_and_run_nothing(show, tmp_path):
    texts = dict.fromkeys(("chunk", "reply", "memory", "callback", "reason", "question_id"), HOSTILE)
    turns = [
        line(HOSTILE, 0, **texts, valid=False, answers=[HOSTILE]),
        line(HOSTILE, 1, **texts, recalled=HOSTILE, recalled_step=0, final=True, answer=HOSTILE, answers=[HOSTILE]),
    ]
    page = show(write(tmp_path / "<img src=x onerror=window.hacked=5>.jsonl", turns))
    page.click("button.open")
    for key in ("ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
        shown = page.inner_text("#one")
        assert shown.count("<script>window.hacked = 1</script>") >= 5 and "{{ 7*7 }}" in shown and "&lt;b&gt;" in shown
        assert all(code in shown for code in ("[U+0000]", "[U+202E]", "[U+2066]", "[U+2028]", "[U+D800]"))
        assert not any(character in shown for character in "\x00\u202e\u2066\u2028\ufffd")
        assert page.evaluate("window.hacked") is None
        assert page.locator("main script, main img, main svg[onload]").count() == 0
    policy = page.get_attribute('meta[http-equiv="Content-Security-Policy"]', "content") or ""
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy


def test_a_run_shows_its_curves_with_gaps_and_what_is_not_known_apart(show, tmp_path):
    page = show(
        write_run(tmp_path / "run", story("q", "York")), write_run(tmp_path / "other", story("q", "Rome"), steps=20)
    )
    assert page.locator("summary h2").all_inner_texts() == ["Learning", "Is the callback alive?", "All other metrics"]
    rate = page.locator('[data-name="health/call_rate"]')
    label = rate.locator("svg").get_attribute("aria-label")
    assert label == "Call rate: turns with a query: A 0.025 → 1 · B 0.05 → 1"
    assert page.locator('[data-name="validation/exact_match"] .value').inner_text() == "A 0.25 → 0.75 · B 0.25 → 0.75"
    outcome = page.locator('[data-name="reward/outcome"] path.line').evaluate_all(
        "(paths) => paths.map((path) => path.getAttribute('d').split('M').length - 1)"
    )
    assert outcome == [2, 2], "step 3 measured nothing"
    dashes = rate.locator("path.line").evaluate_all("(all) => all.map((one) => getComputedStyle(one).strokeDasharray)")
    assert dashes[0] == "none" and dashes[1] != "none"
    box = rate.locator("svg").bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 310 / 320, box["y"] + box["height"] / 2)
    assert rate.locator(".value").inner_text() == "step 40: A 1"
    assert not page.is_visible('[data-name="own/thing"]')


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_and_is_readable_in_light_and_dark(show, two_agents, scheme, tmp_path):
    run = write_run(tmp_path / "run", story("Where is the harbour?", "Rome"))
    page = show(run, two_agents[0], width=390, height=844, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    label = "(cell) => getComputedStyle(cell, '::before').content"
    assert page.locator("tbody .c-f1").first.evaluate(label) == '"F1: "' and not page.is_visible("thead")
    page.click("text=Where is the harbour? >> nth=0")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert page.evaluate("[document.documentElement.scrollWidth, scrollX, scrollY]") == [390, 0, 0]
    turn, line = (page.locator(one).first.bounding_box() for one in (".turns [aria-current]", ".turns"))
    assert turn and line and line["x"] <= turn["x"] and turn["x"] + turn["width"] <= line["x"] + line["width"]
    first, second = (page.locator(".pane").nth(at).bounding_box() for at in (0, 1))
    assert first and second and second["y"] >= first["y"] + first["height"]
    worst = page.evaluate(CONTRAST)
    assert worst[0] >= 4.5, worst


CONTRAST = """() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => channels(colour).slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if (channels(colour)[3] !== 0) return colour;
    }
  };
  let worst = [99, ""];
  for (const node of document.querySelectorAll("#one *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!own || node.closest("svg, option, :disabled") || !node.getClientRects().length) continue;
    const [a, b] = [light(getComputedStyle(node).color), light(behind(node))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < worst[0]) worst = [ratio, node.outerHTML.slice(0, 120)];
  }
  return worst;
}"""


def test_five_hundred_long_trajectories_of_seven_turns_take_less_than_5_mb_and_open(show, tmp_path):
    trace = write(tmp_path / "long.jsonl", long_stories(questions=250, rollouts=2))
    assert trace.stat().st_size > 50e6
    page = show(trace)
    assert (tmp_path / "report.html").stat().st_size < 5e6
    assert page.locator("tbody tr").count() == 500
    assert "characters are shortened" in page.locator(".note").inner_text()
    page.locator("button.open").nth(499).click()
    assert page.locator(".turns li").count() == 7
    chunk = page.locator(".block .tall")
    assert chunk.locator("mark").all_inner_texts() == ["York"] and "characters left out" in chunk.inner_text()


def test_of_more_trajectories_whole_questions_are_kept_and_that_is_said(show, tmp_path):
    turns = [one for n in range(9) for g in range(4) for one in story(f"Question {n}?", "York", rollout=g)]
    page = show(write(tmp_path / "t.jsonl", turns), limit=22)
    assert (
        page.locator(".note").inner_text().startswith("A sample: 20 of 36 trajectories, all rollouts of some questions")
    )
    shown = column(page, "question")
    assert len(shown) == 20 and {shown.count(question) for question in shown} == {4}
