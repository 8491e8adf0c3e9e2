"""Check-in: the second transport. Devices ask the server for work over plain HTTPS, from anywhere, browsers included.

desk       which device has which message, and its reply: no sockets, no HTTP
tokens     who may check in: a file of names and digests of their tokens
server     the desk behind HTTP, and the exchange that a federation's messages go over
device     a Python device that checks in: the standard library alone

Flower's connections (`federated.transport.app_server`) need gRPC, which no browser speaks. The messages are the same
bytes on both. The protocol, version 1:

    POST /v1/check-in          -> 200 {"protocol": 1, "device": NAME, "heartbeat": SECONDS, "most": BYTES}
    GET  /v1/work?wait=SECONDS -> 200, the message, its ticket in the header Msedge-Ticket
                                  204 nothing within that time; 410 the run is over
    POST /v1/work/TICKET       the reply -> 204; 409 the ticket is not this device's, or its reply is no longer wanted
    POST /v1/work/TICKET/failure   {"why": TEXT} -> 204, 409
    POST /v1/heartbeat         -> 204; a device that is silent for three heartbeats counts as gone

Every request has the header "Authorization: Bearer TOKEN". A message that was fetched and not replied to is given out
again, with the same ticket: a device that was restarted, or lost its connection, asks again. Errors are
{"error": TEXT}.
"""
