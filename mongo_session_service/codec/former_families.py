"""Former families: of versions whose places were in their own documents.

``branch`` of a session had the ``family``, the ``root`` (its first session's id), the
invocation ``before`` which it parted from its parent, and ``hidden`` unless it was the
one that is shown. The parent is the first that it names in ``forked_from``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from mongo_session_service.codec.family_record import FamilyRecord, Member
from mongo_session_service.codec.record import SessionRecord
from mongo_session_service.model.records import Document, FamilyKey


def former_families(
    documents: Iterable[Document],
) -> Iterator[tuple[FamilyRecord, Sequence[SessionRecord]]]:
    """Yield the families of stored sessions, and the sessions of each."""
    families: dict[FamilyKey, list[SessionRecord]] = {}
    for each in SessionRecord.read_all(documents):
        key = FamilyKey(*each.key[:2], each.document["branch"]["family"])
        families.setdefault(key, []).append(each)
    for key, versions in families.items():
        versions.sort(key=attrgetter("created", "key"))
        yield _family(key, versions), versions


def _family(key: FamilyKey, versions: Sequence[SessionRecord]) -> FamilyRecord:
    places = {each.origin: place for place, each in enumerate(versions)}
    shown, members = versions[-1], []
    for each in versions:
        # What is gone stands nowhere: the next one that it was made of is its parent.
        found = ((places[it], n) for it, n in each.origins.items() if it in places)
        parent, shared = next(found, (None, 0.0))
        former = each.document["branch"]
        before = former.get("before")
        members.append(Member(*each.origin, parent, before, int(shared)))
        if "hidden" not in former:
            shown = each
    family = FamilyRecord.begin(key, shown)
    family.document["create_time"] = versions[0].created
    return family.changed(members, shown.key.session_id)
