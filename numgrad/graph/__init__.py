"""When a node exists: values, modes, nodes, the backward pass, storages. Knows no formula."""
