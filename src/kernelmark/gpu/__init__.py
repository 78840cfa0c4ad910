"""GPU driver binding for both vendors: memory, streams, events, graphs, modules, runtime
compilation."""
