from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mongo_session_service.model.records import ScopedState, without_temp

flat_states = st.dictionaries(
    st.builds(
        str.__add__, st.sampled_from(["", "app:", "user:", "temp:", "x:"]), st.text()
    ),
    st.integers(),
)


@given(flat_states)
def test_merging_undoes_splitting(state: dict[str, Any]) -> None:
    """A flat state that is split and merged lacks its temp: keys and nothing else."""
    assert ScopedState.split(state).merged() == without_temp(state)


@given(flat_states)
def test_splitting_sorts_every_key_by_its_prefix(state: dict[str, Any]) -> None:
    """Each key ends up in the scope its prefix names, without that prefix."""
    scopes = ScopedState.split(state)

    assert scopes.app == {
        key[4:]: value for key, value in state.items() if key[:4] == "app:"
    }
    assert scopes.user == {
        key[5:]: value for key, value in state.items() if key[:5] == "user:"
    }
    assert not any(key.startswith(("app:", "user:", "temp:")) for key in scopes.session)
