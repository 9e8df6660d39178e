"""A plugin of pytest for scrapyrt's tests, which give a process two seconds to start: one on a busy
machine takes longer, with whichever add-ons."""


def pytest_collection_finish():
    from tests import servers, test_cmdline

    servers.BaseTestServer._wait_for_port.__defaults__ = (0.1, 600)
    test_cmdline.run.__defaults__ = (None, 15)
