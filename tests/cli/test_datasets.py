"""`gapgnn datasets`: the whole list as a table or as one JSON object, and what is here."""

import json
import socket

import pytest

from gapgnn.cli.main import main
from gapgnn.errors import InputError, UnavailableError
from gapgnn.graph.datasets import dataset_names, download


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """Give every test an empty data folder and cache, and no network."""

    def offline(*args, **kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("GAPGNN_DATA", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(socket, "getaddrinfo", offline)
    return folder


def put(folder, path):
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(b"x")


def rows(out):
    """Return the table's rows by name; names may contain one space."""
    return {line[:28].strip(): line[28:].split(maxsplit=4) for line in out.splitlines()[1:]}


def test_the_table_lists_every_data_set_in_order(capsys):
    assert main(["datasets"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == ["name", "nodes", "arcs", "features", "classes", "where"]
    assert list(rows(out)) == list(dataset_names())


def test_the_table_fits_80_columns_and_cuts_nothing(capsys):
    main(["datasets"])
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out


def test_the_table_shows_sizes_and_where_the_files_are(capsys, data, tmp_path):
    put(data, "facebook100/Cornell5.mat")
    put(tmp_path / "cache" / "gapgnn", "reddit/reddit.zip")
    main(["datasets"])
    table = rows(capsys.readouterr().out)
    cells = {name: [cell.strip() for cell in row] for name, row in table.items()}
    assert cells["facebook100/Cornell5"] == ["15,374", "1,303,452", "349", "6", "GAPGNN_DATA"]
    assert cells["reddit"] == ["116,713", "46,233,380", "602", "8", "cache"]
    assert cells["facebook100/Johns Hopkins55"] == ["-", "-", "-", "-", "not here"]
    assert cells["social"][-1] == "built in"


def test_json_is_exactly_one_object_on_stdout(capsys, data):
    put(data, "tolokers/tolokers.npz")
    assert main(["datasets", "--json"]) == 0
    captured = capsys.readouterr()
    entries = {entry["name"]: entry for entry in json.loads(captured.out)["datasets"]}
    assert captured.out.count("\n") == 1
    assert captured.err == ""
    assert list(entries) == list(dataset_names())
    assert [name for name, entry in entries.items() if entry["here"]] == ["social", "tolokers"]
    assert entries["tolokers"]["where"] == "GAPGNN_DATA"
    assert entries["amazon"]["nodes"] == 1_790_731
    assert entries["facebook"]["same_as"] == "facebook100/UIllinois20"
    assert entries["facebook"]["addresses"] == entries["facebook100/UIllinois20"]["addresses"]
    assert entries["facebook100/Yale4"]["nodes"] is None


def test_fetch_downloads_one_and_says_where_it_is(capsys, monkeypatch, tmp_path):
    def fetch(file, *, progress):
        progress(file.name, 1, 1)
        put(download.cache_folder(), file.path)
        return download.cache_folder() / file.path

    monkeypatch.setattr(download, "fetch", fetch)
    assert main(["datasets", "--fetch", "facebook100/MIT8", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["datasets"]
    assert entry["where"] == "cache"
    assert entry["paths"] == [str(tmp_path / "cache" / "gapgnn" / "facebook100" / "MIT8.mat")]
    assert main(["datasets", "--fetch", "facebook100/MIT8"]) == 0
    assert "facebook100/MIT8.mat" in capsys.readouterr().err


def test_fetch_of_the_built_in_graph_has_nothing_to_do(capsys):
    assert main(["datasets", "--fetch", "social", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["datasets"]
    assert entry["paths"] == []


def test_fetch_without_a_network_says_what_to_do(data, capsys):
    with pytest.raises(UnavailableError, match=rf"reddit\.zip and put it in {data}/reddit"):
        main(["datasets", "--fetch", "reddit"])
    assert capsys.readouterr().out == ""


def test_fetch_of_an_unknown_name_gets_the_nearest_one():
    with pytest.raises(InputError, match="Did you mean 'facebook100/Cornell5'"):
        main(["datasets", "--fetch", "cornell5"])
