//! The crates of a released program are in the bills of materials of a build, and in its reports of known vulnerabilities.

use serde_json::{Value, json};

use super::answers;
use crate::kit::needs::{needs, tools};

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
    needs!(tools);
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
        let wanted = json!({"spdxElementId": "SPDXRef-Package-copal-bin", "relationshipType": "STATIC_LINK",
            "relatedSpdxElement": format!("SPDXRef-Linked-{part}")});
        assert_eq!(*link, wanted);
    }
}

/// Names and aliases are those of the package with something added: oe-core finds elements by them.
#[test]
fn the_package_s_spdx_3_document_has_what_is_linked_in() {
    needs!(tools);
    let graph = &made()["spdx3"]["@graph"];
    let tar = named(graph, "tar");
    assert_eq!(tar["spdxId"], "http://spdx/hash/package/copal-bin/linked/tar/0.4.46");
    assert_eq!(
        tar["extension"][0]["https://rdf/alias"],
        "http://alias/UNIHASH/package/copal-bin/linked/tar/0.4.46"
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
        (&json!("http://spdx/hash/package/copal-bin"), 3)
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
    needs!(tools);
    let said = made()["elsewhere"].as_str().unwrap().to_owned();
    assert!(said.starts_with("0 SPDX documents of the package copal-bin"), "{said}");
}

/// One after another: a report of all, nothing to report of the program itself, nothing at all, and a recipe that is not checked.
fn builds() -> [Value; 4] {
    made()["builds"].as_array().unwrap().clone().try_into().unwrap()
}

const PARTS: [&str; 3] = ["tar@0.4.46", "bollard-stubs@1.53.1+rc.1", "musl@1.2.5"];

/// Images, and the summary of a build, take the first package of each report, and none twice.
#[test]
fn the_report_of_an_image_has_each_part_in_the_entry_of_the_recipe() {
    needs!(tools);
    let [made, ..] = builds();
    for of in ["image", "summary", "log"] {
        let packages = made[of].as_array().unwrap();
        assert_eq!(packages.len(), 1, "{of}: {packages:?}");
        let copal = &packages[0];
        assert_eq!((&copal["name"], &copal["version"]), (&json!("copal"), &json!("0.1.0")), "{of}");
        // The version of the entry is the program's: that of a part is in its name.
        let products = copal["products"].as_array().unwrap();
        let names: Vec<&str> = products.iter().map(|one| one["product"].as_str().unwrap()).collect();
        assert_eq!((names[0], &names[1..]), ("copal", &PARTS[..]), "{of}");
        // The database knows a part under one of its names.
        assert!(products.iter().all(|one| one["cvesInRecord"] == "Yes"), "{of}: {products:?}");
        let cpes: Vec<&str> =
            copal["cpes"].as_array().unwrap().iter().map(|cpe| cpe.as_str().unwrap()).collect();
        // GNU's tar is not among them.
        let tar: Vec<String> = TAR.iter().map(|vendor| format!("cpe:{vendor}:tar:0.4.46")).collect();
        assert_eq!(
            cpes.iter().filter(|cpe| cpe.contains(":tar:")).collect::<Vec<_>>(),
            tar.iter().collect::<Vec<_>>(),
            "{of}"
        );
        assert!(cpes.contains(&"cpe:musl-libc:musl:1.2.5"), "{of}: {cpes:?}");
        let issue = |id: &str, product: Option<&str>, summary: Option<&str>| {
            (json!(id), json!(product), json!(summary))
        };
        let issues: Vec<(Value, Value, Value)> = copal["issue"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| (one["id"].clone(), one["product"].clone(), one["summary"].clone()))
            .collect();
        let wanted = [
            // Of CVE_STATUS: once, and not for each part.
            issue("CVE-known", None, None),
            issue("CVE-copal", None, Some("Overflow")),
            issue("CVE-composefs:tar", Some(PARTS[0]), Some("tar@0.4.46: Overflow")),
            issue(
                "CVE-bollard-stubs:bollard-stubs",
                Some(PARTS[1]),
                Some("bollard-stubs@1.53.1+rc.1: Overflow"),
            ),
            issue("CVE-musl-libc:musl", Some(PARTS[2]), Some("musl@1.2.5: Overflow")),
        ];
        assert_eq!(issues, wanted, "{of}");
    }
    assert_eq!(made["text"], "copal\ncopal+tar\ncopal+bollard-stubs\ncopal+musl\n");
    assert_eq!(made["errors"], json!([]));
    // None of the parts has a report of its own there, which a later build would take.
    assert_eq!(made["files"], json!(["copal", "copal_cve.json"]));
}

#[test]
fn a_part_is_reported_where_there_is_nothing_to_report_of_the_program_itself() {
    needs!(tools);
    let [_, made, ..] = builds();
    for of in ["image", "summary"] {
        assert_eq!(made[of].as_array().unwrap().len(), 1, "{of}");
        let copal = &made[of][0];
        assert_eq!((&copal["name"], &copal["version"]), (&json!("copal"), &json!("0.1.0")), "{of}");
        let products: Vec<&Value> =
            copal["products"].as_array().unwrap().iter().map(|one| &one["product"]).collect();
        assert_eq!(products, PARTS, "{of}");
    }
    assert_eq!(made["text"], "copal+tar\ncopal+bollard-stubs\ncopal+musl\n");
    assert_eq!(made["errors"], json!([]));
}

/// Without a database, for one, the task writes nothing: the last build's report would then get each part a second time.
#[test]
fn the_report_of_an_earlier_build_is_not_taken_for_that_of_this_one() {
    needs!(tools);
    let [.., nothing, skipped] = builds();
    for made in [nothing, skipped] {
        let empty = json!([]);
        for of in ["image", "summary", "log", "errors", "files"] {
            assert_eq!(made[of], empty, "{of}");
        }
        assert_eq!(made["text"], "");
    }
}

/// Where everything before it comes out of a cache, the archive would not be unpacked.
#[test]
fn a_task_that_reads_the_bill_has_the_archive_unpacked() {
    needs!(tools);
    assert_eq!(made()["depends"], json!({"do_create_spdx": " copal:do_unpack"}));
}
