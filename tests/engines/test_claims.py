"""Processors that only one attempt on a machine has."""

import subprocess
import sys
import threading
import time

import pytest

from deep5.core.errors import UsageError
from deep5.engines.claims import claimed
from deep5.measuring.pinning import processors

needs_two = pytest.mark.skipif(len(processors(2)) < 2, reason="two claims need two processors")


@needs_two
def test_two_claims_are_disjoint_and_free_afterwards():
    with claimed(1, 10.0) as one, claimed(1, 10.0) as other:
        assert len({*one, *other}) == 2
    count = len(processors(1 << 20))
    with claimed(count, 10.0) as every:
        assert every == processors(1 << 20)


def test_a_claim_waits_for_another_and_for_no_longer_than_its_limit():
    count, waited = len(processors(1 << 20)), []
    with claimed(count, 10.0):
        with (
            pytest.raises(UsageError, match=r"kept the processors .* for 0.3 s"),
            claimed(1, 0.3, lambda: waited.append(1)),
        ):
            pass
        assert waited
    begin = time.monotonic()
    held = claimed(count, 10.0)
    held.__enter__()
    threading.Timer(0.5, lambda: held.__exit__(None, None, None)).start()
    with claimed(1, 10.0) as got:
        assert len(got) == 1
    assert time.monotonic() - begin > 0.4


def test_the_end_of_a_process_releases_its_claim():
    count = len(processors(1 << 20))
    program = (
        "import time; from deep5.engines.claims import claimed\n"
        f"with claimed({count}, 10.0): print('claimed', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "claimed\n"
        with pytest.raises(UsageError, match="kept the processors"), claimed(1, 0.0):
            pass
        process.kill()
        process.wait()
        with claimed(count, 10.0) as got:
            assert len(got) == count


def test_more_processors_than_there_are():
    with pytest.raises(UsageError, match="allowed: at most"), claimed(4096, 1.0):
        pass
