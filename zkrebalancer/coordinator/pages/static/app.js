// Which view: `/` lists the groups, `/?group=NAME` shows one.

import { showGroup } from "./group.js";
import { showGroups } from "./groups.js";

const fields = new URLSearchParams(location.search);
const name = fields.get("group");
if (name === null) showGroups(fields);
else showGroup(name, fields);
