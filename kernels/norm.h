/* norm.h - how the sum of an array's squares is divided: see cpu_norm.h. */
#ifndef DCOMMI_NORM_H
#define DCOMMI_NORM_H

#define DCOMMI_NORM_LANES 32u /* of a row */
#define DCOMMI_NORM_ROW 1024u /* elements */
#define DCOMMI_NORM_ROWS 8u   /* of a tile */

#endif
