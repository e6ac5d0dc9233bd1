"""The reviewed table: what each tool of the suites may do by itself. Made once, from the tools' own descriptions.

A tool that only reads is low. An effect is high where it moves money, data or rights out of the user's hands, speaks to
somebody in their name, or destroys something: a person confirms it. It is medium, done at once and audited, where it
only adds to or moves what is the user's own and can be undone by hand.
"""

from __future__ import annotations

from typing import Final

from toolfleet.schemas.outcomes import Tier

EFFECTS: Final[dict[str, tuple[Tier, str]]] = {
    # workspace, travel
    "send_email": (Tier.HIGH, "speaks for the user, can carry data away"),
    "delete_email": (Tier.HIGH, "destroys"),
    "create_calendar_event": (Tier.HIGH, "invites others by mail"),
    "cancel_calendar_event": (Tier.HIGH, "destroys, and tells the participants"),
    "reschedule_calendar_event": (Tier.MEDIUM, "moves the user's own event; can be moved back"),
    "add_calendar_event_participants": (Tier.HIGH, "invites others by mail"),
    "create_file": (Tier.MEDIUM, "adds a file of the user's own, shared with nobody"),
    "append_to_file": (Tier.MEDIUM, "adds to a file; what was there stays"),
    "delete_file": (Tier.HIGH, "destroys"),
    "share_file": (Tier.HIGH, "gives rights away"),
    "reserve_hotel": (Tier.HIGH, "binds the user"),
    "reserve_car_rental": (Tier.HIGH, "binds the user"),
    "reserve_restaurant": (Tier.HIGH, "binds the user"),
    # banking
    "send_money": (Tier.HIGH, "moves money"),
    "schedule_transaction": (Tier.HIGH, "moves money"),
    "update_scheduled_transaction": (Tier.HIGH, "moves money"),
    "update_password": (Tier.HIGH, "hands over the account"),
    "update_user_info": (Tier.HIGH, "changes who the bank thinks the user is"),
    # slack
    "send_direct_message": (Tier.HIGH, "speaks for the user"),
    "send_channel_message": (Tier.HIGH, "speaks for the user"),
    "post_webpage": (Tier.HIGH, "publishes"),
    "invite_user_to_slack": (Tier.HIGH, "gives rights away"),
    "add_user_to_channel": (Tier.HIGH, "gives rights away"),
    "remove_user_from_slack": (Tier.HIGH, "takes rights away"),
}


def tier_of(tool: str) -> Tier:
    """Tools that are not in the table only read."""
    found = EFFECTS.get(tool)
    return Tier.LOW if found is None else found[0]
