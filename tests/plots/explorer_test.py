"""The explorer is one file that loads nothing and holds the weights given."""

import html.parser
import json
import re

import numpy as np
import pytest

from kzoo import plots

NASTY = [
    "</script>",
    "<b>",
    "<!--",
    "]]>",
    "&amp;",
    "\"'`",
    "\\u003c",
    "😀",
    "שלום",
    "\n\u2028",
    "{{DATA}}{{TITLE}}",
    "\ud800",  # half of a character, from a tokenizer of bytes
]


class Page(html.parser.HTMLParser):
    """What a browser sees: tags, their attributes, and the text within them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.open = [], {}, []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.open.append(dict(attributes).get("id", tag))

    def handle_endtag(self, tag):
        self.open.pop() if self.open else None

    def handle_data(self, data):
        if self.open:
            self.texts[self.open[-1]] = self.texts.get(self.open[-1], "") + data

    @property
    def data(self):
        return json.loads(self.texts["data"])


def weights(*shape):
    return np.random.default_rng(0).dirichlet(np.ones(shape[-1]), shape[:-1])


@pytest.fixture
def page():
    views = {
        "encoder": (weights(2, 3, 5, 5), "abcde"),
        "cross": ([weights(2, 3, 4, 5)], "wxyz", "abc"),
    }
    return plots.attention_explorer(views, example=1, title="Attention of 5")


def test_the_page_holds_the_weights_in_thousandths(page):
    data = Page(page).data
    assert data["title"] == "Attention of 5" and data["unit"] == 1000
    encoder, cross = data["views"]
    assert [encoder["name"], encoder["same"]] == ["encoder", True]
    assert [cross["name"], cross["same"]] == ["cross", False]
    assert encoder["keys"] == encoder["queries"] == list("abcde")
    assert [cross["queries"], cross["keys"]] == [list("wxyz"), list("abc")]
    got = np.array(encoder["layers"]).reshape(2, 3, 5, 5) / 1000
    np.testing.assert_allclose(got, weights(2, 3, 5, 5), atol=0.0005001)
    got = np.array(cross["layers"]).reshape(1, 3, 4, 3) / 1000
    expected = weights(2, 3, 4, 5)[1, :, :, :3]  # padding is left out
    np.testing.assert_allclose(got[0], expected, atol=0.0005001)


def test_the_page_loads_nothing(page):
    for reference in ("://", "src=", "@import", "url(", "<link", "fetch(", "import("):
        assert reference not in page
    assert re.findall(r"http\S+", page) == [
        'http-equiv="Content-Security-Policy"',
    ]
    policies = [
        attributes["content"]
        for tag, attributes in Page(page).tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert len(policies) == 1 and policies[0].startswith("default-src 'none'")


def test_tokens_stay_text_whatever_they_are():
    count = len(NASTY)
    page = plots.attention_explorer(
        {"<i>view</i>": (np.eye(count), NASTY)}, title="</title><script>alert(1)"
    )
    plain = Page(plots.attention_explorer({"view": (np.eye(1), "a")}))
    seen = Page(page)
    assert [tag for tag, _ in seen.tags] == [tag for tag, _ in plain.tags]
    (view,) = seen.data["views"]
    assert view["queries"] == NASTY and view["name"] == "<i>view</i>"
    assert seen.data["title"] == "</title><script>alert(1)"
    untitled = plots.attention_explorer({"view": (np.eye(1), "a")}, title=None)
    assert "<title></title>" in untitled
    assert "alert(1)" not in "".join(seen.texts[s] for s in seen.texts if s == "script")
    page.encode("utf-8")


def test_the_file_is_the_page_and_replaces_an_older_one(tmp_path, page):
    path = tmp_path / "attention.html"
    path.write_text("older")
    views = {"self": (np.eye(3), ["ä", "b", "c"])}
    returned = plots.attention_explorer(views, path=str(path))
    assert path.read_text(encoding="utf-8") == returned
    assert [p.name for p in tmp_path.iterdir()] == ["attention.html"]


def test_what_fails_leaves_the_older_file(tmp_path, monkeypatch):
    path = tmp_path / "attention.html"
    path.write_text("older")

    def full(self, *_, **__):
        with open(self, "w") as file:
            file.write("half")
        raise OSError("No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(OSError, match="No space"):
        plots.attention_explorer({"self": (np.eye(1), "a")}, path=path)
    assert path.read_text() == "older"
    assert [p.name for p in tmp_path.iterdir()] == ["attention.html"]


def test_a_notebook_shows_the_page_in_a_frame(page):
    ((tag, attributes),) = Page(page._repr_html_()).tags
    assert tag == "iframe" and attributes["srcdoc"] == page


def test_200_tokens_of_6_layers_and_8_heads_stay_small():
    sharp = np.random.default_rng(0).dirichlet(np.full(200, 0.1), (6, 8, 200))
    page = plots.attention_explorer({"self": (sharp, ["token"] * 200)})
    assert len(page) < 3 * sharp.size, "below 3 bytes a weight"


@pytest.mark.parametrize(
    ("views", "message"),
    [
        ({}, "a dict from a view's name"),
        ([np.eye(3)], "a dict from a view's name"),
        ({"self": np.eye(3)}, "'self' must be .*Received: ndarray"),
        ({"self": (np.eye(3),)}, "'self' must be"),
        ({"self": (np.eye(3), "abcd")}, "'self' expects 1 to 3 query tokens.*: 4"),
        ({"self": (np.eye(3), "abc", "")}, "'self' expects 1 to 3 key tokens.*: 0"),
        ({"self": (np.eye(3) - 1, "abc")}, "from 0 to 1.* Received: -1 to 0"),
        ({"self": (np.full((1, 1), np.nan), "a")}, "from 0 to 1"),
        (
            {"self": (np.zeros((9, 9, 400, 300)), "a" * 400, "b" * 300)},
            "9,720,000 weights, more than 8,000,000. Give fewer layers",
        ),
    ],
)
def test_what_cannot_be_explored_is_refused(views, message):
    with pytest.raises(ValueError, match=message):
        plots.attention_explorer(views)
