"""Calls that travel: errors keep their kind, and an archive holds a run and nothing else."""

import base64
import io
import zipfile
from dataclasses import replace

import pytest

from deep5.core.errors import OutputError, RunFailed, UsageError
from deep5.engines.call import answer_of, function_name, packed, place_for, result, unpack
from deep5.engines.lease import Interrupted
from deep5.engines.request import RunRequest

RUN = RunRequest(key="a", arguments=[], folder="/none", threads=1, processors=1, time_limit_s=1.0, shared=False)


def test_results_and_errors_return(monkeypatch):
    from deep5.search import trial_run

    name = function_name(trial_run.run_trial)
    assert name == "deep5.search.trial_run:run_trial"

    def answers(error):
        def call(request):
            if error is not None:
                raise error
            return {"given": request["x"]}

        monkeypatch.setattr(trial_run, "run_trial", call)
        return answer_of(name, {"x": 5})

    assert result(answers(None)) == {"given": 5}
    for error, kind in (
        (OutputError("full"), OutputError),
        (UsageError("wrong"), UsageError),
        (KeyError("k"), RunFailed),
    ):
        with pytest.raises(kind, match=r"full|wrong|KeyError"):
            result(answers(error))
    with pytest.raises(Interrupted):  # no answer
        answers(Interrupted("later"))


@pytest.mark.parametrize("name", ["os:system", "subprocess:run", "deep5:run", ""])
def test_only_functions_of_deep5_are_called(name):
    with pytest.raises(UsageError, match="allowed: a function of deep5"):
        answer_of(name, {})


def test_an_archive_is_the_next_attempt(tmp_path):
    for number in (1, 2):
        with place_for(RUN) as run:
            (tmp_path / run.folder / "a" / "1" / "result").mkdir(parents=True)
            (tmp_path / run.folder / "a" / "1" / "result" / "result.json").write_text(f"{number}")
            archive = packed(run)
        assert not (tmp_path / run.folder).exists()
        assert unpack(archive, tmp_path / "runs", "a") == number
        assert (tmp_path / "runs" / "a" / f"{number}" / "result" / "result.json").read_text() == f"{number}"
    assert sorted(path.name for path in (tmp_path / "runs" / "a").iterdir()) == ["1", "2"]
    with place_for(replace(RUN, shared=True, folder=str(tmp_path))) as run:
        assert packed(run) is None
        assert run.folder == str(tmp_path)


def _archive(name, content=b"x"):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr(name, content)
    return base64.b64encode(data.getvalue()).decode()


@pytest.mark.parametrize("archive", ["", "#", "AAAA", *map(_archive, ("../../out", "/elsewhere/out", "b/1/x"))])
def test_a_damaged_archive_writes_nothing(tmp_path, archive):
    with pytest.raises(UsageError, match="the archive of the run a is damaged"):
        unpack(archive, tmp_path / "runs", "a")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert [*(tmp_path / "runs" / "a").iterdir()] == []
