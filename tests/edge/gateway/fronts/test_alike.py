"""Behind fronts everything is as without: the same tests, of the lane, of the rest of HTTP, and NVIDIA's client."""

from __future__ import annotations

from tests.edge.gateway.http.test_app import (  # noqa: F401
    test_errors_are_json,
    test_health_pages_and_metrics,
    test_web_pages_of_others,
)
from tests.edge.gateway.http.test_lane import (  # noqa: F401
    test_an_error_leaves_the_connection_as_it_was,
    test_both_lanes_answer_alike,
    test_byte_by_byte,
    test_close_is_asked_for,
    test_handed_over_with_what_came_before,
    test_heads_that_are_refused,
    test_many_requests_on_one_connection,
    test_no_http_at_all,
    test_pieces_make_no_difference,
    test_request_ids_come_back,
)
from tests.edge.gateway.http.test_tritonclient import *  # noqa: F403
