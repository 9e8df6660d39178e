"""What the tests start processes with."""

from concurrent.futures import ThreadPoolExecutor

from tests import processes


def test_threads_start_processes_at_the_same_time():
    """The order of one is not taken for a part of another's: both would be waited for, for ever."""

    def printed(number):
        return processes.run(["-c", f"print({number})"]).stdout

    with ThreadPoolExecutor(8) as pool:
        assert [*map(int, pool.map(printed, range(16)))] == [*range(16)]
