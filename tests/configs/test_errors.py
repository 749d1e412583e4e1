"""Errors: the tree in the module's docstring is complete, and every error can be pickled."""

import pickle
import re

import pytest

from whale_ray.configs import errors

CLASSES = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, errors.WhaleError)
]


def test_the_documented_tree_is_the_hierarchy():
    drawn = re.findall(r"^[ │├└─]*?(\w+Error)\b", errors.__doc__, re.MULTILINE)
    assert sorted(drawn) == sorted(error.__name__ for error in CLASSES)
    depth = {}
    for line in errors.__doc__.splitlines():
        found = re.match(r"^([ │├└─]*)(\w+Error)\b", line)
        if found:
            depth[found[2]] = (len(found[1]) - 4) // 4
    for error in CLASSES:
        assert depth[error.__name__] == error.__mro__.index(errors.WhaleError), error


@pytest.mark.parametrize("error", CLASSES)
def test_exit_codes_distinguish_usage_from_failure(error):
    expected = errors.EXIT_USAGE if issubclass(error, errors.UsageError) else errors.EXIT_FAILURE
    if error is errors.JobCancelledError:  # as for Ctrl-C in any program
        expected = errors.EXIT_INTERRUPTED
    assert error.exit_code == expected


@pytest.mark.parametrize("error", [e for e in CLASSES if e is not errors.UserFunctionError])
def test_errors_cross_process_borders_unchanged(error):
    copy = pickle.loads(pickle.dumps(error("one line")))
    assert type(copy) is error
    assert str(copy) == "one line"


def test_a_users_traceback_comes_first_and_can_be_pickled():
    error = errors.UserFunctionError("match", 3, "Traceback …\nKeyError: 'x'\n", "{'id': 7}")
    copy = pickle.loads(pickle.dumps(error))
    assert (
        str(copy) == "Traceback …\nKeyError: 'x'\nin operator 'match', instance 3; input: {'id': 7}"
    )
    assert (copy.operator_id, copy.instance) == ("match", 3)
