"""What a peer says is one short line wherever it is shown or kept, whatever it has put into it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from flwr.app import Context, Message, RecordDict

import client.app
from client.app import _say, make_app
from client.round import Participant
from common.errors import MessageError, UserError
from common.experiment.files import load_experiment
from common.messages.messages import Order, Report, message_to, pack_introduction_question, unpack_run
from common.messages.messages_pb2 import FromServer, Refused
from common.program.identity import common_name, new_key
from common.program.start import run_program
from common.storage.spool import Spool
from server.keys.request import read_request
from strategies.flower.listener import Listener
from strategies.flower.strategy import FederationError
from tests.harness.hostile_server import HostileServer, saying, serving
from tests.harness.processes import client_process
from tests.hostile.liars import federation

FORGED = "\x1b[2J\x1b]0;title\x07\r\nround 7: all is well\n\u202e"
LONG = FORGED * 50_000


def is_one_line(text: str, longest: int) -> bool:
    return len(text) <= longest and text.isprintable()


class Talker(Participant):
    """Has much to say about why it cannot do what it is asked for."""

    def train(self, order: Order) -> Report[bytes | Spool]:
        raise UserError(LONG)


def test_a_reason_is_a_short_line_of_the_record(tmp_path: Path) -> None:
    experiment = load_experiment("digits", ["clients=3", "rounds=2", "schedule.period=2"])
    run = federation(experiment, tmp_path, [1], Talker)
    assert run.counted == [2, 2]
    for record in run.records:
        assert len(record.to_json()) < 3_000
        assert all(is_one_line(why, 300) for why in record.clients_missing)


def test_a_run_that_cannot_go_on_says_so_in_a_short_line(tmp_path: Path) -> None:
    experiment = load_experiment("digits", ["clients=20", "rounds=2"])
    with pytest.raises(FederationError, match="and 10 more") as error:
        federation(experiment, tmp_path, range(20), Talker)
    assert is_one_line(str(error.value), 10 * 400)


def test_the_last_words_of_a_program_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise UserError(f"the server refused this client: {LONG}")

    with pytest.raises(SystemExit):
        run_program(fail)
    assert is_one_line(capsys.readouterr().err.removesuffix("\n"), 2_010)


def test_a_client_that_is_refused_for_good_says_so_in_one_line(tmp_path: Path) -> None:
    refused, log = FromServer(refused=Refused(reason=FORGED * 1_000, final=True)), tmp_path / "log"
    with (
        serving(HostileServer(saying(refused))) as address,
        client_process(address, "--insecure", "--partition", "0/2", log=log) as process,
    ):
        assert process.wait(30) == 2
    (*_, last, nothing) = log.read_text().split("\n")
    assert nothing == ""
    assert last.startswith("error: the server at")
    assert is_one_line(last, 2_010)


def test_what_is_printed_where_nobody_else_listens_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Listener().say(LONG)
    _say(LONG)
    assert all(is_one_line(line, 500) for line in capsys.readouterr().out.split("\n"))


def test_a_traceback_does_not_quote_what_a_terminal_obeys(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.app, "_tell_traceback", client.app._write_traceback)

    def fail(_: Context) -> Participant:
        raise RuntimeError(FORGED)

    app = make_app(fail, _say)
    question = message_to(1, "introduce", pack_introduction_question())
    reply: Message = app(question, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={}))
    assert reply.has_error()
    said = capsys.readouterr()
    assert "RuntimeError" in said.err
    assert all(is_one_line(line, 500) for line in (said.out + said.err).split("\n"))


@pytest.mark.parametrize("name", ["\x1b[2J", "client\nroot: all is well"])
def test_a_request_for_a_key_names_nobody_that_a_terminal_obeys(name: str, tmp_path: Path) -> None:
    key, path = new_key(), tmp_path / "request.csr"
    request = x509.CertificateSigningRequestBuilder().subject_name(common_name(name)).sign(key, hashes.SHA256())
    path.write_bytes(request.public_bytes(Encoding.PEM))
    with pytest.raises(UserError, match="no name for a client") as error:
        read_request(path)
    assert is_one_line(str(error.value).replace(str(path), ""), 400)


@pytest.mark.parametrize("name", ["x" * 1_000_000, FORGED])
def test_a_run_has_a_name_that_can_be_kept(name: str) -> None:
    experiment = load_experiment("digits").to_yaml()
    with pytest.raises(MessageError, match="a run without a name"):
        unpack_run({"experiment": experiment, "run": name}, 1, [])
    assert json.dumps(unpack_run({"experiment": experiment, "run": "run"}, 1, []).name) == '"run"'
