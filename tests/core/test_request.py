from evaljax.core import request


def test_a_long_request_is_shown_by_its_join():
    shown = request.describe(request.LoglikelihoodRequest("a" * 100 + "END", "START" + "b" * 100))
    assert shown == f"loglikelihood request (context '…{'a' * 57}END', continuation 'START{'b' * 55}…')"
