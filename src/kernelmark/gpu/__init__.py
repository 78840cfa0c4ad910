"""One GPU binding for two vendors: memory, streams, events, graphs, modules, run-time compiling."""
