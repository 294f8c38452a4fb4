"""A callback finds out at once whether a module will do."""

from __future__ import annotations

import pytest

from nbl_callbacks import Actor, Learner, Observer, Restartable, require


class Everything:
    def act(self, contexts, exploit=False, mask=None): ...
    def observe(self, contexts, arms, feedback, weight=None): ...
    def learn(self): ...
    def restart(self, horizon=None): ...


class Doubling:
    """Stands in for a callback: only its name is used."""


PROTOCOLS = {Actor: "act", Observer: "observe", Learner: "learn", Restartable: "restart"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_module_with_the_methods_passes_through(protocol):
    """No inheritance is asked for, and the module comes back for typed use."""
    module = Everything()
    assert isinstance(module, protocol)
    assert require(module, protocol, Doubling()) is module


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_missing_method_is_named(protocol):
    """The error names the callback, the protocol, the module and the method."""
    with pytest.raises(TypeError) as error:
        require(object(), protocol, Doubling())
    for word in ("Doubling", protocol.__name__, "object", f"`{PROTOCOLS[protocol]}`"):
        assert word in str(error.value)


def test_an_attribute_that_is_no_method_is_missing():
    """A flag called `learn` is not a way to learn."""

    class Flag:
        learn = True

    with pytest.raises(TypeError, match="`learn`"):
        require(Flag(), Learner, Doubling())


def test_the_package_does_not_import_nbl():
    """It is a distribution of its own."""
    import subprocess
    import sys

    code = "import sys, nbl_callbacks; sys.exit(any(m == 'nbl' or m.startswith('nbl.') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
