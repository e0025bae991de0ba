//! The JSON schemas of the documentation, by a validator that is not ours.
#![allow(dead_code, unreachable_pub)] // no test program uses all of it

use std::process::Command;

/// Whether the published schema takes `receipt`, and knows every field of it: what the validator says, empty where it is
/// content.
pub fn complaints(receipt: &serde_json::Value) -> String {
    complaints_by("flash-receipt.schema.json", receipt)
}

/// The same of another schema and what it is about.
pub fn complaints_by(schema: &str, value: &serde_json::Value) -> String {
    const SCRIPT: &str = "
import json, sys, jsonschema
def strict(s):
    if isinstance(s, dict):
        if 'properties' in s:
            s['additionalProperties'] = False
        for v in s.values():
            strict(v)
    elif isinstance(s, list):
        for v in s:
            strict(v)
    return s
schema = json.load(open(sys.argv[1]))
jsonschema.Draft7Validator.check_schema(schema)
for e in jsonschema.Draft7Validator(strict(schema)).iter_errors(json.loads(sys.argv[2])):
    print('/'.join(map(str, e.absolute_path)), e.message)
";
    let schema = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(schema);
    let out =
        Command::new("python3").args(["-c", SCRIPT]).arg(schema).arg(value.to_string()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}
