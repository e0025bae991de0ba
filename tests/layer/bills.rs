//! The crates of a released program are in the bills of materials of a build, and in its reports of known vulnerabilities.

use serde_json::{Value, json};

use crate::answers;

fn bill() -> Value {
    let crate_ = |name: &str, version: &str, owner: &str| {
        json!({"name": name, "version": version, "purl": format!("pkg:cargo/{name}@{version}"),
            "licenses": [{"expression": "MIT OR Apache-2.0"}], "hashes": [{"alg": "SHA-256", "content": "0123"}],
            "externalReferences": [{"type": "vcs", "url": format!("https://github.com/{owner}/{name}-rs")}]})
    };
    let musl = json!({"name": "musl", "version": "1.2.5", "purl": "pkg:generic/musl@1.2.5", "licenses": [{"expression": "MIT"}],
        "cpe": "cpe:2.3:a:musl-libc:musl:1.2.5:*:*:*:*:*:*:*"});
    json!({"components": [crate_("tar", "0.4.46", "Composefs"), crate_("bollard-stubs", "1.53.1+rc.1", "fussybeaver"), musl]})
}

fn made() -> Value {
    answers("bills.py", &[bill()]).remove(0)
}

/// The element of a list that has this name.
fn named<'a>(list: &'a Value, name: &str) -> &'a Value {
    list.as_array()
        .unwrap()
        .iter()
        .find(|element| element["name"] == name)
        .unwrap_or_else(|| panic!("no {name} in {list}"))
}

const TAR: [&str; 4] = ["composefs", "rust-lang", "tar", "tar_project"];

fn cpes(vendors: &[&str], rest: &str) -> Vec<Value> {
    vendors.iter().map(|vendor| json!(format!("cpe:2.3:a:{vendor}:{rest}:*:*:*:*:*:*:*"))).collect()
}

#[test]
fn the_package_s_spdx_2_document_has_what_is_linked_in() {
    let document = &made()["spdx2"];
    let tar = named(&document["packages"], "tar");
    assert_eq!(
        (&tar["versionInfo"], &tar["licenseDeclared"]),
        (&json!("0.4.46"), &json!("MIT OR Apache-2.0"))
    );
    assert_eq!(tar["checksums"], json!([{"algorithm": "SHA256", "checksumValue": "0123"}]));
    let locators = |kind: &str| -> Vec<Value> {
        let refs = tar["externalRefs"].as_array().unwrap().iter();
        refs.filter(|one| one["referenceType"].as_str().unwrap().ends_with(kind))
            .map(|one| one["referenceLocator"].clone())
            .collect()
    };
    assert_eq!(locators("purl"), [json!("pkg:cargo/tar@0.4.46")]);
    assert_eq!(locators("cpe23Type"), cpes(&TAR, "tar:0.4.46"));
    let links = document["relationships"].as_array().unwrap();
    assert_eq!(links.len(), 3);
    for (link, part) in links.iter().zip(["tar-0.4.46", "bollard-stubs-1.53.1-rc.1", "musl-1.2.5"]) {
        let wanted = json!({"spdxElementId": "SPDXRef-Package-copal", "relationshipType": "STATIC_LINK",
            "relatedSpdxElement": format!("SPDXRef-Linked-{part}")});
        assert_eq!(*link, wanted);
    }
}

/// Names and aliases are those of the package with something added: oe-core finds elements by them.
#[test]
fn the_package_s_spdx_3_document_has_what_is_linked_in() {
    let graph = &made()["spdx3"]["@graph"];
    let tar = named(graph, "tar");
    assert_eq!(tar["spdxId"], "http://spdx/hash/package/copal/linked/tar/0.4.46");
    assert_eq!(
        tar["extension"][0]["https://rdf/alias"],
        "http://alias/UNIHASH/package/copal/linked/tar/0.4.46"
    );
    assert_eq!(tar["extension"][0]["type"], "https://rdf/alias-type");
    // What sbom-cve-check, the check of wrynose, takes for something to be checked.
    assert_eq!(tar["software_primaryPurpose"], "specification");
    assert_eq!(
        (&tar["software_packageUrl"], &tar["creationInfo"]),
        (&json!("pkg:cargo/tar@0.4.46"), &json!("_:CreationInfo0"))
    );
    let identifiers = tar["externalIdentifier"].as_array().unwrap();
    assert_eq!(identifiers[0]["identifier"], "pkg:cargo/tar@0.4.46");
    let found: Vec<Value> = identifiers[1..].iter().map(|one| one["identifier"].clone()).collect();
    assert_eq!(found, cpes(&TAR, "tar:0.4.46"));

    let elements = graph.as_array().unwrap();
    let related = |kind: &str| -> Vec<(&Value, &Value)> {
        elements
            .iter()
            .filter(|one| one["relationshipType"] == kind)
            .map(|one| (&one["from"], &one["to"]))
            .collect()
    };
    let links = related("hasStaticLink");
    assert_eq!(links.len(), 1);
    assert_eq!(
        (links[0].0, links[0].1.as_array().unwrap().len()),
        (&json!("http://spdx/hash/package/copal"), 3)
    );
    assert!(links[0].1.as_array().unwrap().contains(&tar["spdxId"]), "{links:?}");
    let licences = related("hasDeclaredLicense");
    assert_eq!(licences.len(), 3);
    let (_, licence) = licences.iter().find(|(from, _)| **from == tar["spdxId"]).unwrap();
    let text = elements.iter().find(|one| one["spdxId"] == licence[0]).unwrap();
    assert_eq!(text["simplelicensing_licenseExpression"], "MIT OR Apache-2.0");
}

/// Where another create-spdx keeps its documents elsewhere, the build says so: it does not go on with a document that lacks the crates.
#[test]
fn a_document_that_is_not_there_stops_the_build() {
    let said = made()["elsewhere"].as_str().unwrap().to_owned();
    assert!(said.starts_with("0 SPDX documents of the package copal"), "{said}");
}

#[test]
fn the_report_of_the_recipe_has_each_part_under_names_of_its_own() {
    let made = made();
    let names: Vec<&Value> = made["report"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["copal", "copal+tar", "copal+bollard-stubs", "copal+musl"]);
    let tar = named(&made["report"], "copal+tar");
    assert_eq!(tar["version"], "0.4.46");
    // GNU's tar is not among them.
    let products: Vec<String> = TAR.iter().map(|vendor| format!("{vendor}:tar")).collect();
    assert_eq!(tar["products"], json!(products));
    assert_eq!(named(&made["report"], "copal+musl")["products"], json!(["musl-libc:musl"]));
    assert_eq!(made["text"], "copal\ncopal+tar\ncopal+bollard-stubs\ncopal+musl\n");
}

/// Where everything before it comes out of a cache, the archive would not be unpacked.
#[test]
fn a_task_that_reads_the_bill_has_the_archive_unpacked() {
    assert_eq!(made()["depends"], json!({"do_create_spdx": " copal:do_unpack"}));
}
