//! Device trees made here, as the compiler makes them.
#![allow(dead_code)] // no test program uses all of it

/// Its name and properties.
pub type Node<'a> = (&'a str, &'a [(&'a str, &'a [u8])]);

/// A tree with nodes below its root, each with its properties; the root's own have the name of no node.
pub fn device_tree(nodes: &[Node<'_>]) -> Vec<u8> {
    let (mut structure, mut strings) = (Vec::new(), Vec::new());
    let word = |to: &mut Vec<u8>, n: usize| to.extend(u32::try_from(n).unwrap().to_be_bytes());
    let begin = |to: &mut Vec<u8>, name: &str| {
        word(to, 1);
        to.extend(name.bytes().chain([0]));
        to.resize(to.len().next_multiple_of(4), 0);
    };
    begin(&mut structure, "");
    for (node, properties) in nodes {
        if !node.is_empty() {
            begin(&mut structure, node);
        }
        for (name, value) in *properties {
            [3, value.len(), strings.len()].iter().for_each(|n| word(&mut structure, *n));
            structure.extend(*value);
            structure.resize(structure.len().next_multiple_of(4), 0);
            strings.extend(name.bytes().chain([0]));
        }
        if !node.is_empty() {
            word(&mut structure, 2);
        }
    }
    [2, 9].iter().for_each(|n| word(&mut structure, *n));
    // The header, the end of the list of reserved memory, both parts.
    let start = 40 + 16;
    let end = start + structure.len();
    let size = end + strings.len();
    let mut tree = Vec::new();
    for field in [0xd00d_feed, size, start, end, 40, 17, 16, 0, strings.len(), structure.len()] {
        word(&mut tree, field);
    }
    tree.resize(start, 0);
    tree.extend(structure.into_iter().chain(strings));
    tree
}

/// A tree of some size. Each model has another one.
pub fn model(name: &str, size: usize) -> Vec<u8> {
    let mut value = name.as_bytes().to_vec();
    value.resize(value.len().max(size), b'.');
    device_tree(&[("", &[("model", &value)])])
}
