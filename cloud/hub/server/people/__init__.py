"""What people ask of a hub, by programs and by its pages; `cloud.hub.server.operators` has most of it.

logins       who is logged in on a page
gate         who asks, and whether they may; logging in and out
searching    devices by what is known of them, a page at a time
health       how a fleet does, in numbers
releases     what the repository has, and where it comes from
pages        the pages' files
"""
