"""What people look at: the OpenAPI document, a page to try requests on, a page that shows how the gateway is doing."""
