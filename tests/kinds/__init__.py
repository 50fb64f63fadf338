"""Every kind of provider through the gateway: scripted upstreams over real sockets, the official SDK as the client."""
