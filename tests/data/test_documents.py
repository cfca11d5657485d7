"""Reading documents, every bad input by file and place, and the one rendering."""

import io
import os

import pytest

from remem_jax.data.documents import Document, paragraphs, read_documents, render_documents
from remem_jax.errors import RememError


def test_text_files_are_titled_by_their_name(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffline é\r\nline 2\r\n".encode())
    (tmp_path / "b.md").write_text("# B")
    found = read_documents([tmp_path / "b.md", str(tmp_path / "a.txt")])
    assert found == [Document("b.md", "# B"), Document("a.txt", "line é\nline 2\n")]


def test_json_lines_hold_documents_or_records_that_stand_for_their_paragraphs(tmp_path):
    (tmp_path / "d.jsonl").write_text(
        '{"title": "A", "text": "a\u2028b", "url": "passed over"}\n\n'
        '{"id": "1", "question": "?", "paragraphs": [{"title": "B", "text": "b"}, {"title": "C", "text": ""}]}\n'
    )
    assert read_documents([tmp_path / "d.jsonl"]) == [Document("A", "a\u2028b"), Document("B", "b"), Document("C", "")]


def test_a_directory_is_read_whole_sorted_and_without_hidden_or_other_files(tmp_path):
    for name in ["b.txt", "a/z.txt", "a/y.MD", ".hidden.txt", ".git/x.txt", "picture.png"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert [d.text for d in read_documents([tmp_path])] == ["a/y.MD", "a/z.txt", "b.txt"]


def test_a_dash_is_standard_input():
    assert read_documents(["-"], io.BytesIO("é".encode())) == [Document("standard input", "é")]
    with pytest.raises(RememError, match="not open"):
        read_documents(["-"])


def test_an_empty_document_is_no_error_and_renders_to_nothing(tmp_path):
    (tmp_path / "empty.txt").write_text(" \n")
    found = read_documents([tmp_path / "empty.txt"])
    assert found == [Document("empty.txt", " \n")]
    assert render_documents(found) == "" and paragraphs(found) == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.txt", b"ab\xff", r"x.txt: expected UTF-8, found byte 0xff at offset 2"),
        ("x.jsonl", b'{"title": "a", "text": "b"}\n\xe9', r"x.jsonl: expected UTF-8, found byte 0xe9 at offset 28"),
        (
            "x.jsonl",
            b'{"title": "a", "text": "b"}\n{"title": ',
            r"x.jsonl line 2: expected a JSON object, found bad JSON",
        ),
        ("x.jsonl", b"[" * 100_000, r"x.jsonl line 1: expected a JSON object, found bad JSON"),
        ("x.jsonl", b"\n[1]", r"x.jsonl line 2: expected a JSON object, found a list"),
        ("x.jsonl", b'{"title": "a"}', r"x.jsonl line 1: field 'text' is missing, found 'title'"),
        ("x.jsonl", b'{"title": 1, "text": ""}', r"x.jsonl line 1: field 'title' must be a string, found a number"),
        (
            "x.jsonl",
            b'{"title": "", "text": "\\ud800"}',
            r"x.jsonl line 1: field 'text' holds half of a surrogate pair",
        ),
        ("x.jsonl", b'{"paragraphs": "p"}', r"x.jsonl line 1: field 'paragraphs' must be a list, found a string"),
        ("x.jsonl", b'{"paragraphs": [3]}', r"x.jsonl line 1: paragraphs\[0\]: expected an object .* found a number"),
        ("x.jsonl", b'{"paragraphs": [{"title": "t"}]}', r"line 1: paragraphs\[0\]: field 'text' is missing"),
        ("x.pdf", b"%PDF", r"x.pdf: expected a document in .txt, .md, .jsonl, found '.pdf'"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_the_place(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RememError, match=message) as error:
        read_documents([tmp_path / name])
    assert "\n" not in str(error.value)


def test_a_missing_file_and_a_directory_without_documents_are_refused(tmp_path):
    with pytest.raises(RememError, match=r"absent.txt: no such file"):
        read_documents([tmp_path / "absent.txt"])
    with pytest.raises(RememError, match="no such file"):
        read_documents([tmp_path / "absent"])
    (tmp_path / "picture.png").write_text("x")
    with pytest.raises(RememError, match="no readable document in this directory"):
        read_documents([tmp_path])


def test_documents_are_rendered_numbered_with_a_blank_line_between():
    found = [Document("A\nB", "one\n"), Document("nothing", ""), Document("C", "two\n\nthree")]
    assert render_documents(found) == "Document 1:\nA B\none\n\nDocument 2:\nC\ntwo\n\nthree"
    assert render_documents(found, "plain") == "one\ntwo\n\nthree"


def test_paragraphs_are_split_on_blank_lines_and_keep_their_title():
    found = paragraphs([Document("A", "\none\nmore\n \n\t\n two\n"), Document("B", "three")])
    assert found == [Document("A", "one\nmore"), Document("A", " two"), Document("B", "three")]


def test_a_pipe_or_a_dangling_link_in_a_directory_is_passed_over(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "nowhere.md").symlink_to(tmp_path / "gone.md")
    (tmp_path / "a.txt").write_text("apple")
    assert read_documents([tmp_path]) == [Document("a.txt", "apple")]


def test_a_named_pipe_and_an_empty_path_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(RememError, match="expected a file or a directory, found something else: for a pipe use '-'"):
        read_documents([tmp_path / "pipe.txt"])
    with pytest.raises(RememError, match="expected a path, found an empty one"):
        read_documents([""])


def test_a_long_paragraph_without_blank_lines_is_split_between_lines():
    lines = [f"line {i} " + "x" * 890 for i in range(5)]
    pieces = paragraphs([Document("t", "\n".join(lines))])
    assert [p.text for p in pieces] == ["\n".join(lines[:2]), "\n".join(lines[2:4]), lines[4]]
    assert {p.title for p in pieces} == {"t"}
