"""Servers of `fusebench eval`: one queue per device, answered over HTTP or as an MCP tool."""
