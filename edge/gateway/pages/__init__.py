"""The gateway's documents: the OpenAPI document, a page to try requests, a page that shows the gateway's state."""
